"""The tasks of ``map_arrow`` and ``map_pandas``: an author's stateless function over the rows of one partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochal.errors import SchemaError
from epochal.operators.process.output_rows import fitted, schema_text, shortened
from epochal.state.types import with_spark_types
from epochal.tasks.arrow_tasks import prepare_worker
from epochal.tasks.map_seconds import accumulator
from epochal.tasks.reporting import AuthorCall, Reporting
from epochal.tasks.steps import StepClock


@dataclass(frozen=True)
class AuthorMap:
    """The function of ``mapInArrow``. ``verb``: its name in messages, ``map_arrow(enrich)``. ``seconds``: receives the
    working seconds of each task.

    Raises ``AuthorError`` for errors of the function, ``SchemaError`` for results that do not fit ``schema``.
    """

    verb: str
    function: Callable[[Iterator[Any]], Any]
    schema: pa.Schema
    pandas: bool
    seconds: Any = field(default_factory=accumulator, compare=False, repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        clock = StepClock()
        batches = clock.reading(iter(batches))
        with Reporting(self.verb, step="T2"), AuthorCall(lambda: self.verb):
            output = self.function(map(_frame, batches) if self.pandas else batches)
            if not isinstance(output, (Iterator, list)):
                raise SchemaError(f"its function must yield {self._what}, any number; it returned {shortened(output)}.")
            for part in output:
                for batch in self._fitted(part).to_batches():
                    with clock.waiting():
                        yield batch
        clock.ended("T2")
        if self.seconds is not None:
            self.seconds.add([(self.verb, clock.work.busy_seconds)])

    @property
    def _what(self) -> str:
        return "pandas.DataFrame" if self.pandas else "pyarrow.RecordBatch"

    def _fitted(self, part: Any) -> pa.Table:
        where, declared = "its function", f"Its schema is declared as: {schema_text(self.schema)}."
        if self.pandas and _is_frame(part):
            return fitted(where, self._from_pandas(part), self.schema, declared)
        if isinstance(part, (pa.RecordBatch, pa.Table)) and not self.pandas:
            table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
            return fitted(where, table, self.schema, declared)
        raise SchemaError(f"{where} yielded {shortened(part)}, which is not a {self._what}. {declared}")

    def _from_pandas(self, frame: Any) -> pa.Table:
        """An Arrow table of a frame. Columns outside the schema are included, so that the check reports them."""
        arrays, names = [], [str(name) for name in frame.columns]
        for position, name in enumerate(names):
            type = self.schema.field(name).type if name in self.schema.names else None
            if not len(frame):  # an empty pandas column has no reliable type
                arrays.append(pa.array([], type or pa.null()))
                continue
            try:
                arrays.append(pa.Array.from_pandas(frame.iloc[:, position], type=type))
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise SchemaError(
                    f"its function yielded column {name!r} as {frame.dtypes.iloc[position]}: "
                    f"{with_spark_types(error)}. Its schema is declared as: {schema_text(self.schema)}."
                ) from None
        return pa.Table.from_arrays(arrays, names=names)


def _frame(batch: pa.RecordBatch) -> Any:
    return batch.to_pandas(maps_as_pydicts="strict")


def _is_frame(value: Any) -> bool:
    import pandas

    return isinstance(value, pandas.DataFrame)
