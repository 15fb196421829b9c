"""Event time without Spark: rejected and late rows, over Arrow tables.

Implements the rules that :mod:`epochal.engine.event_time` expresses in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.conditions import EARLIEST, EpochConditions
from epochal.contracts.source import PARTITION
from epochal.declarations.event_time import EventTime
from epochal.declarations.sides import LATE, LATE_OF_INPUT
from epochal.engine.job import ObservedTime
from epochal.operators.contract import Operator
from epochal.state.expiry import microseconds
from epochal.state.watermarks import WHOLE, latest_accepted


@dataclass(frozen=True)
class LocalEventTime:
    """``with_watermark`` over the streams ``reads``. ``name``: the name of the output stream."""

    name: str
    declaration: str
    event_time: EventTime
    reads: tuple[str, ...]


@dataclass
class LocalTime:
    """Event time of one epoch: rejected and late rows, and the observed times."""

    conditions: EpochConditions
    latest: dict[str, dict[str, int | None]] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)

    @property
    def observed(self) -> ObservedTime:
        return ObservedTime(self.latest, self.rejected, self.late)

    def accepted(self, step: LocalEventTime, rows: pa.Table, partitions: Sequence[str]) -> tuple[pa.Table, pa.Table]:
        """Split the rows into those with a possible event time and the rejected ones. ``partitions``: of the slice."""
        latest = latest_accepted(self.conditions.epoch_time, step.event_time.max_ahead)
        times = microseconds(rows[step.event_time.column].combine_chunks())
        possible = pc.and_(pc.less_equal(times, latest), pc.greater_equal(times, EARLIEST))
        possible = pc.fill_null(possible, False)
        kept, rejected = rows.filter(possible), rows.filter(pc.invert(possible))
        self.rejected[step.declaration] = rejected.num_rows
        self.latest[step.declaration] = {
            partition: _latest(kept, step.event_time.column, partition) for partition in partitions
        }
        return _without_partition(kept), _without_partition(rejected)

    def on_time(self, operator: Operator, inputs: Sequence[pa.Table]) -> tuple[list[pa.Table], dict[str, pa.Table]]:
        """Split the rows of an operator's inputs into rows on time, and late rows by their side output."""
        late = self.conditions.watermarks(operator.name).late
        kept, apart = [], {}
        for number, (input, rows) in enumerate(zip(operator.inputs, inputs, strict=True)):
            bound = operator.late_before(number, late) if input.event_time is not None else None
            if input.event_time is None or bound is None:
                kept.append(rows)
                continue
            times = microseconds(rows[input.event_time].combine_chunks())
            timely = pc.fill_null(pc.greater_equal(times, bound), False)
            kept.append(rows.filter(timely))
            apart[number] = rows.filter(pc.invert(timely))
        if not apart:
            return kept, {}
        late_rows = pa.concat_tables(apart.values(), promote_options="default")
        self.late[operator.name] = late_rows.num_rows
        of_inputs = zip(LATE_OF_INPUT, range(len(inputs)), strict=False)
        return kept, {LATE: late_rows, **{side: apart[number] for side, number in of_inputs if number in apart}}


def _latest(rows: pa.Table, column: str, partition: str) -> int | None:
    mine = rows if partition == WHOLE else rows.filter(pc.equal(rows[PARTITION], partition))
    found: int | None = pc.max(microseconds(mine[column].combine_chunks())).as_py()
    return found


def _without_partition(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([PARTITION]) if PARTITION in rows.column_names else rows
