"""``map_arrow`` and ``map_pandas``: an author's function over batches of rows, without state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from epochal.errors import PipelineError
from epochal.pipeline import verb_kinds, verbs

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.types import StructType


class MapsBatches(ABC):
    """What streams and tables have of these verbs."""

    def map_arrow(
        self,
        function: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]],
        schema: str | StructType,
        label: str | None = None,
    ) -> Self:
        """A function over Arrow, as Spark's ``mapInArrow``: it gets the record batches of a part of an epoch's rows and
        yields record batches with the columns ``schema``.

        It keeps nothing from before, and what it gives may not depend on where batches end and in which order rows are.
        """
        return self._mapped("map_arrow", function, schema, label, pandas=False)

    def map_pandas(
        self,
        function: Callable[[Iterator[pd.DataFrame]], Iterable[pd.DataFrame]],
        schema: str | StructType,
        label: str | None = None,
    ) -> Self:
        """As :meth:`map_arrow`, from and to pandas DataFrames. Timestamps are in UTC."""
        return self._mapped("map_pandas", function, schema, label, pandas=True)

    def _mapped(self, verb: str, function: Any, schema: str | StructType, label: str | None, pandas: bool) -> Self:
        if not callable(function):
            raise PipelineError(f"{verb}() takes a function from batches to batches, not {function!r}.")
        name = f"{verb}({label or getattr(function, '__name__', type(function).__name__)})"
        mapped = partial(verbs.map_partitions, name, function, schema, pandas)
        return self._transformed(name, mapped, verb_kinds.by_author, by_author=True)

    @abstractmethod
    def _transformed(self, label: str, function: Any, kind_of: verb_kinds.KindOf, *, by_author: bool) -> Self:
        """What ``function`` makes of its rows."""
