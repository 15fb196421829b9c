"""Wrong times to live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.mutants.mutant import change, mutant

STATE = "tests/unit/tasks/test_time_to_live.py"
AGGREGATE = "tests/spark/tasks/test_aggregate_ttl.py"
UPGRADE = "tests/unit/test_ttl_changes.py"


def _as_at_the_parent(_: Any) -> Any:
    return lambda self, table: self.transaction.view(table.id)


@mutant("ttl: a function sees rows that expired since the last epoch", STATE)
def _seen_too_long() -> None:
    from epochal.tasks.operator import Subtask

    change(Subtask, "living", _as_at_the_parent)


@mutant("ttl: an expired group continues when no epoch ran in between", AGGREGATE)
def _group_goes_on() -> None:
    from epochal.tasks.operator import Subtask

    change(Subtask, "living", _as_at_the_parent)


@mutant("ttl: reads refresh nothing", STATE)
def _reads_refresh_nothing() -> None:
    from epochal.operators.process.keyed_state import Touched

    change(Touched, "refreshed", lambda _: lambda self, keys, positions, sub_keys, times: None)


@mutant("ttl: each read writes the row", STATE)
def _each_read_writes() -> None:
    from epochal.operators.process.keyed_state import Touched

    def wrong(make: Any) -> Any:
        def made(self: Any, *arguments: Any) -> None:
            make(self, *arguments)
            self._between = 0

        return made

    change(Touched, "__init__", wrong)


@mutant("ttl: in event time an earlier row shortens the lifetime", STATE)
def _earlier_row_shortens() -> None:
    from epochal.operators.process.keyed_state import Touched

    def wrong(make: Any) -> Any:
        def made(self: Any, *arguments: Any) -> None:
            make(self, *arguments)
            self._may_go_back = False

        return made

    change(Touched, "__init__", wrong)


@mutant("ttl: in event time a late row writes a row that expires immediately", STATE)
def _late_rows_live_shortly() -> None:
    from epochal.contracts.conditions import BEGINNING
    from epochal.operators.process.keyed_calls import KeyedCalls

    def wrong(times: Any) -> Any:
        def without_watermark(self: Any, rows: Any, ends: Any) -> Any:
            subtask = self._subtask
            late = subtask.watermarks.model_copy(update={"late": BEGINNING})
            places = {**subtask.conditions.clock.places, subtask.operator: late}
            clock = subtask.conditions.clock.model_copy(update={"places": places})
            self._subtask = replace(subtask, conditions=subtask.conditions.seen(clock))
            try:
                return times(self, rows, ends)
            finally:
                self._subtask = subtask

        return without_watermark

    change(KeyedCalls, "_latest_times", wrong)


@mutant("ttl: in event time the last row alone determines the lifetime of a group", AGGREGATE)
def _group_by_last_row() -> None:
    import numpy as np

    from epochal.operators.aggregate.work import AggregateTtlWork
    from epochal.state.table import TOUCHED

    def wrong(touched: Any) -> Any:
        def by_slice(self: Any, subtask: Any, slice: Any, old: Any) -> Any:
            if TOUCHED.name not in slice.column_names:
                return touched(self, subtask, slice, old)
            return np.asarray(slice[TOUCHED.name])

        return by_slice

    change(AggregateTtlWork, "_touched", wrong)


@mutant("ttl: expired rows return when the time to live is raised", UPGRADE)
def _expired_rows_return() -> None:
    from epochal.state.expiry import Expiry

    def wrong(horizon: Any) -> Any:
        return lambda self, clock: horizon(self.model_copy(update={"floor": None}), clock)

    change(Expiry, "horizon", wrong)


@mutant("ttl: deleted keys never expire", AGGREGATE)
def _deleted_keys_stay() -> None:
    from epochal.operators.aggregate.work import AggregateTtlWork

    def wrong(columns: Any) -> Any:
        def without_time(self: Any, *arguments: Any) -> Any:
            found = columns(self, *arguments)
            return found if self.deleted is None else (pa.nulls(len(found[0]), found[0].type),)

        return without_time

    change(AggregateTtlWork, "further_columns", wrong)


@mutant("ttl: the output row of a deleted key is not retracted", AGGREGATE)
def _deleted_rows_stay() -> None:
    from epochal.operators.aggregate.work import AggregateTtlWork, AggregateWork

    change(AggregateTtlWork, "visible", lambda _: AggregateWork.visible)
