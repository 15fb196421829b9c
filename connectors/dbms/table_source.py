"""DBMS source: slices are ranges of an increasing column, recorded with their numbers of rows.

A slice is ``(start, end]``: the values above the last position, up to a settled value (one that has been visible for
``settle_seconds``). Reads of a slice are repeatable only if writers add rows with greater values and change no others.
The source verifies this by row counts: it counts each range when it plans the slice, the task counts the rows that it
reads, and the source counts the last slice again when it plans the next one, which detects rows committed late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection, Engine, Table

from epochal.backends.dbms.failures import translated
from epochal.connectors.dbms.reading import Positions, Reading, Value
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.declarations.names import closest
from epochal.errors import EpochalError, SchemaError, SourceChanged, SourceError
from epochal.tasks.reporting import as_failure, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["DbmsSource", "Reading"]

SMALL_SLICE_ROWS = 20_000
"""Maximum number of rows in a slice that one task reads."""


class DbmsSource(Source):
    """DBMS source. The position ``{"value": v}`` means that all rows up to ``v`` are taken; ``null``: no rows."""

    def __init__(
        self,
        reading: Reading,
        column: str,
        settle_seconds: float = 1.0,
        partitions: int = 4,
        clock: Callable[[], float] = time.monotonic,
        bounded: bool = False,
        punctuation: str | None = None,
    ) -> None:
        self._punctuation = punctuation
        self._bounded = bounded
        self._reading = reading
        self._column = column
        self._settle_seconds = settle_seconds
        self._partitions = partitions
        self._clock = clock
        self._taken: dict[str, Any] = {"value": None}
        self._last: Slice | None = None
        self._seen: list[tuple[float, Value]] = []
        self._available: _Available | None = None
        self._engine: Engine | None = None
        self._layout: _Layout | None = None

    @property
    def kind(self) -> str:
        return "dbms"

    @property
    def bounded(self) -> bool:
        return self._bounded

    @property
    def ended(self) -> bool:
        return self._available is not None and self._available.ended

    @property
    def punctuated(self) -> bool:
        return self._punctuation is not None

    def schema(self, spark: SparkSession) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        with self._connected("look at its columns") as connection:
            layout = self._known(connection)
            if self._punctuation is not None:
                self._check_punctuation(connection, layout, self._punctuation)
            return from_arrow_schema(layout.schema)

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._taken = dict(checkpoint) if checkpoint else {"value": None}
        for slice in slices:
            self.accept(slice)

    def checkpoint(self) -> dict[str, Any]:
        return dict(self._taken)

    def limit_to_available(self) -> None:
        with self._connected("look for new rows") as connection:
            layout = self._known(connection)
            greatest = connection.execute(sa.select(sa.func.max(layout.column))).scalar()
        self._settled(greatest)
        self._available = _Available(greatest, self._clock() + self._settle_seconds)

    def plan(self, limits: SliceLimits) -> Slice | None:
        with self._connected("look for new rows") as connection:
            layout = self._known(connection)
            self._check_last(connection, layout)
            after = layout.positions.decode(self._taken)
            end = self._end(connection, layout, after, limits)
            ranges = [] if end is None else self._ranges(connection, layout, after, end)
            if self._available is not None:
                self._available.ended = not ranges and self._clock() >= self._available.settled_at
            if end is None or not ranges:
                return None
        return Slice(
            start=dict(self._taken),
            end=layout.positions.encode(end),
            detail={"ranges": ranges},
            rows=sum(range["rows"] for range in ranges),
        )

    def accept(self, slice: Slice) -> None:
        self._taken = dict(slice.end)
        self._last = slice

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        with self._connected("be read") as connection:
            layout = self._known(connection)
        ranges = slice.detail["ranges"]
        frame = spark.range(0, len(ranges), 1, len(ranges))
        return frame.mapInArrow(_RangeReader(self._reading, self._column, tuple(ranges)), _struct(layout.schema))

    def acknowledge(self, slice: Slice) -> None:
        """Do nothing: a table needs no acknowledgement."""

    def _end(self, connection: Connection, layout: _Layout, after: Value | None, limits: SliceLimits) -> Value | None:
        """The end of the next slice: the greatest settled value, or a lower one within the limits."""
        settled = self._settled(connection.execute(sa.select(sa.func.max(layout.column))).scalar())
        if self._available is not None:
            settled = self._available.of(settled)
        if settled is None or (after is not None and settled <= after):  # type: ignore[operator]
            return None
        within = layout.within(after, settled)
        if self._punctuation is not None:
            return self._up_to_punctuation(connection, layout, within, settled)
        ends: Any = None
        if limits.max_records is not None:
            numbered = sa.select(layout.column).where(within).order_by(layout.column)
            ends = connection.execute(numbered.offset(limits.max_records - 1).limit(1)).scalar()
        if ends is not None:
            return ends  # type: ignore[no-any-return]
        return settled

    def _up_to_punctuation(
        self, connection: Connection, layout: _Layout, within: sa.ColumnElement[bool], settled: Value
    ) -> Value | None:
        """The value of the next punctuation row. For a bounded source without further punctuation, the last value."""
        first = sa.select(sa.func.min(layout.column)).where(within, _condition(self._punctuation or ""))
        found: Value | None = connection.execute(first).scalar()
        if found is None and self._bounded and self._available is not None and settled == self._available.upto:
            return settled
        return found

    def _check_punctuation(self, connection: Connection, layout: _Layout, condition: str) -> None:
        try:
            connection.execute(sa.select(layout.column).where(_condition(condition)).limit(0))
        except sa.exc.DBAPIError as error:
            raise SchemaError(
                f"{self._reading.name}: punctuation {condition!r} is not a valid condition on its columns: {error.orig}"
            ) from None

    def _settled(self, greatest: Value | None) -> Value | None:
        """The greatest value that was already the greatest ``settle_seconds`` ago."""
        now = self._clock()
        if greatest is not None and (not self._seen or self._seen[-1][1] != greatest):
            self._seen.append((now, greatest))
        old = [value for since, value in self._seen if now - since >= self._settle_seconds]
        self._seen = self._seen[max(0, len(old) - 1) :]
        return old[-1] if old else None

    def _ranges(self, connection: Connection, layout: _Layout, after: Value | None, end: Value) -> list[dict[str, Any]]:
        """The parts of the slice that tasks read in parallel, with their numbers of rows."""
        within = layout.within(after, end)
        first, rows = connection.execute(sa.select(sa.func.min(layout.column), sa.func.count()).where(within)).one()
        if not rows:
            return []
        parts = self._partitions if rows > SMALL_SLICE_ROWS else 1
        found = []
        for upto in layout.positions.cut(first, end, parts):
            count = rows if parts == 1 else layout.count(connection, after, upto)
            if count:
                ends = {"after": layout.positions.encode(after), "upto": layout.positions.encode(upto)}
                found.append({**ends, "rows": count})
            after = upto
        return found

    def _check_last(self, connection: Connection, layout: _Layout) -> None:
        if self._last is None or self._last.rows is None:
            return
        after, upto = layout.positions.decode(self._last.start), layout.positions.decode(self._last.end)
        now = layout.count(connection, after, upto)
        if now != self._last.rows:
            raise _changed(self._reading, self._column, self._last.start, self._last.end, self._last.rows, now)

    def _known(self, connection: Connection) -> _Layout:
        if self._layout is None:
            self._layout = _Layout.of(connection, self._reading, self._column)
        return self._layout

    @contextmanager
    def _connected(self, doing: str) -> Iterator[Connection]:
        with translated(self._reading.name, doing, self._reading.address, SourceError):
            if self._engine is None:
                self._engine = self._reading.address.engine()
            with self._engine.connect().execution_options(epochal_reading=True) as connection:
                yield connection


@dataclass
class _Available:
    """Rows available to a limited run: those up to ``upto`` (``None``: no rows), read once they have settled."""

    upto: Any
    settled_at: float
    ended: bool = False

    def of(self, settled: Any) -> Any:
        """The settled value, limited to the available rows."""
        return None if settled is None or self.upto is None else min(settled, self.upto)


@dataclass(frozen=True)
class _Layout:
    """The table, its slice column, and the schema of the columns to read."""

    table: Table
    column: sa.Column[Any]
    positions: Positions
    schema: pa.Schema

    @classmethod
    def of(cls, connection: Connection, reading: Reading, column: str) -> _Layout:
        table = reading.reflect(connection)
        if column not in table.c:
            raise SchemaError(f"{reading.name} has no column {column!r}.{closest(column, table.c.keys())}")
        found = table.c[column]
        return cls(table, found, Positions.of(column, reading.type_of(found)), reading.schema(table))

    def within(self, after: Value | None, upto: Value | None) -> sa.ColumnElement[bool]:
        below = self.column <= upto
        return below if after is None else sa.and_(self.column > after, below)

    def count(self, connection: Connection, after: Value | None, upto: Value | None) -> int:
        query = sa.select(sa.func.count()).select_from(self.table).where(self.within(after, upto))
        return int(connection.execute(query).scalar_one())


@dataclass(frozen=True)
class _RangeReader:
    """Executor task. Each input row is the number of a range, whose rows the task returns."""

    reading: Reading
    column: str
    ranges: tuple[dict[str, Any], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._read(self.ranges[number])
        except EpochalError as error:
            raise type(error)(f"{error.message}\n{encode(as_failure(error, 'T2'))}") from error

    def _read(self, range: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        engine = self.reading.address.engine()
        try:
            with (
                translated(self.reading.name, "be read", self.reading.address, SourceError),
                engine.connect().execution_options(epochal_reading=True) as connection,
            ):
                layout = _Layout.of(connection, self.reading, self.column)
                positions = layout.positions
                within = layout.within(positions.decode(range["after"]), positions.decode(range["upto"]))
                query = sa.select(*self.reading.chosen(layout.table)).where(within).order_by(layout.column)
                rows = 0
                for batch in self.reading.batches(connection, query, layout.schema):
                    rows += batch.num_rows
                    yield batch
            if rows != range["rows"]:
                raise _changed(self.reading, self.column, range["after"], range["upto"], range["rows"], rows)
        finally:
            engine.dispose()


def _condition(text: str) -> sa.ColumnElement[bool]:
    return sa.literal_column(f"({text})", sa.Boolean)


def _changed(
    reading: Reading, column: str, after: dict[str, Any], upto: dict[str, Any], recorded: int, now: int
) -> SourceChanged:
    above = "" if after["value"] is None else f"above {after['value']} and "
    return SourceChanged(
        f"{reading.name} has {now} rows with {column} {above}up to {upto['value']}; its slice recorded {recorded}. "
        "Rows were removed, or added late with a value of an earlier slice. Restore the rows; if writers commit late, "
        "raise settle_seconds."
    )


def _struct(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
