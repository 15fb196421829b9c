"""``feedback``: the head of a loop, an internal source, and its tail, which takes part in an epoch like a sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.source import Slice, SliceLimits
from epochal.declarations.feedback import HOP, Feedback
from epochal.declarations.names import closest, listed
from epochal.errors import PipelineError
from epochal.operators.loops.work import LoopTail, ReadRecords, read_records
from epochal.snapshots import in_flight
from epochal.snapshots.in_flight import InternalSource
from epochal.snapshots.manifest import Manifest, RecordsInFlight
from epochal.snapshots.store import SnapshotStore
from epochal.state.type_names import quoted, type_name
from epochal.tasks.arrow_tasks import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_READERS: Final = 32
"""Maximum number of tasks that read the records of an epoch."""


@dataclass(frozen=True)
class LoopHead(InternalSource):
    """Reads the records in flight of the parent's manifest.

    A loop in rounds reads all of them in one slice, whatever the limit of slices: a round is one epoch.
    """

    feedback: Feedback
    store: SnapshotStore

    @property
    def kind(self) -> str:
        return "loop"

    def schema(self, spark: SparkSession) -> StructType:
        return head_columns(self.feedback)

    def slice_of(self, parent: Manifest | None, limits: SliceLimits) -> Slice | None:
        held = self._held(parent)
        return None if held is None else in_flight.slice_of(held, None if self.feedback.aligned else limits.max_records)

    def is_under_way(self, parent: Manifest | None) -> bool:
        """True also in the epoch after the last round of a loop in rounds."""
        held = self._held(parent)
        return held is not None and bool(held.files or (self.feedback.aligned and held.hop))

    def holds_input_back(self, parent: Manifest | None) -> bool:
        return self.feedback.aligned and self.is_under_way(parent)

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        parts = in_flight.parts_of(slice)
        count = min(len(parts), _READERS)
        shares = tuple(tuple(parts[number::count]) for number in range(count))
        task = ReadRecords(self.store, self.feedback.name, shares, self.feedback.record)
        rows = map_in_arrow(spark.range(0, count, 1, count), task, from_arrow_schema(self.feedback.record))
        if self.feedback.max_hops is None:
            return rows
        hop = F.coalesce(HOP, F.lit(1)) if self.feedback.counts_hops else F.lit(in_flight.hop_of(slice))
        return rows.withColumn(HOP, hop.cast("int"))

    def table(self, slice: Slice | None) -> pa.Table:
        """The rows of :meth:`read` as an Arrow table, empty without a slice."""
        if slice is None:
            return self.feedback.output.empty_table()
        read = read_records(self.store, self.feedback.name, in_flight.parts_of(slice), self.feedback.record)
        rows = pa.concat_tables([self.feedback.record.empty_table(), *read])
        if self.feedback.counts_hops:
            rows = rows.set_column(rows.num_columns - 1, HOP, pc.fill_null(rows[HOP], 1))
        elif self.feedback.max_hops is not None:
            rows = rows.append_column(HOP, pa.array([in_flight.hop_of(slice)] * rows.num_rows, pa.int32()))
        return rows.cast(self.feedback.output)

    def _held(self, parent: Manifest | None) -> RecordsInFlight | None:
        return None if parent is None else parent.loops.get(self.feedback.name)


def head_columns(feedback: Feedback) -> StructType:
    """The Spark schema of the head."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(feedback.output)


def tail_of(feedback: Feedback, store: SnapshotStore) -> LoopTail:
    """The backend that stores the records of the next pass."""
    return LoopTail(feedback.name, store, feedback.record)


@dataclass(frozen=True)
class WithinBound:
    """The records of the head with at most ``most`` hops, or, if ``beyond``, those with more."""

    most: int
    keep_hop: bool
    beyond: bool = False

    def __call__(self, frame: DataFrame) -> DataFrame:
        if self.beyond:
            return frame.where(f"{HOP} > {self.most}")
        kept = frame.where(f"{HOP} <= {self.most}")
        return kept if self.keep_hop else kept.drop(HOP)

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table."""
        beyond = pc.greater(rows[HOP], self.most)
        kept = rows.filter(beyond if self.beyond else pc.invert(beyond))
        return kept if self.beyond or self.keep_hop else kept.drop_columns([HOP])


@dataclass(frozen=True)
class Closing:
    """The records of a loop from the stream that closes it: the loop's columns, and their hops, increased by one.

    Raises ``PipelineError`` with loop, column and fix.
    """

    feedback: Feedback

    def __call__(self, frame: DataFrame) -> DataFrame:
        types = {field.name.casefold(): type_name(field.dataType) for field in frame.schema}
        self._check(list(frame.columns), types)
        columns = [quoted(column.name) for column in self.feedback.columns]
        hop = [f"CAST(coalesce({HOP}, 0) + 1 AS INT) AS {HOP}"] if self.feedback.counts_hops else []
        return frame.selectExpr(*columns, *hop)

    def table(self, rows: pa.Table) -> pa.Table:
        """Like ``__call__``, for an Arrow table."""
        self._check(rows.column_names, {})
        columns = [rows[column.name] for column in self.feedback.columns]
        if self.feedback.counts_hops:
            columns.append(pc.add(pc.fill_null(rows[HOP], 0), 1))
        return pa.Table.from_arrays(columns, names=self.feedback.record.names).cast(self.feedback.record)

    def _check(self, there: list[str], types: Mapping[str, str]) -> None:
        """``types``: the known types of the columns, by their names in lower case."""
        where, own = f"loop {self.feedback.name!r}", [column.name for column in self.feedback.columns]
        known = {name.casefold() for name in there}
        for column in self.feedback.columns:
            if column.name.casefold() not in known:
                raise PipelineError(
                    f"{where}: the stream that closes it has no column {column.name!r}; it has {listed(there)}. Select "
                    f"it, or take it from the schema of feedback(..).{closest(column.name, there)}"
                )
            found = types.get(column.name.casefold(), column.type)
            if found != column.type:
                cast = f"CAST({column.name} AS {column.type})"
                raise PipelineError(
                    f"{where}: column {column.name!r} is {found} in the stream that closes it, and {column.type} in "
                    f"the schema of feedback(..). Cast it, with_columns({column.name}={cast!r}), or change the schema."
                )
        unknown = known - {name.casefold() for name in own} - {HOP}
        for name in there:
            if name.casefold() in unknown:
                raise PipelineError(
                    f"{where}: the stream that closes it has a column {name!r}, which is not in the schema of "
                    f"feedback(..). Remove it, select({', '.join(map(repr, own))}), or add it to the schema."
                )
        if self.feedback.counts_hops and HOP not in known:
            raise PipelineError(
                f"{where} limits the hops of its records, max_hops={self.feedback.max_hops}, but their column {HOP!r} "
                "does not reach close(): keep it in select(..); a function that is not called for each key declares "
                f"'{HOP} int' in its output, and returns the maximum of its rows. Or count rounds: aligned=True."
            )
