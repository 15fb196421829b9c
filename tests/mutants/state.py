"""Wrong ways to keep, to expire and to change state."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from tests.mutants.mutant import change, mutant

STATE = "tests/contract/test_state_backends.py"
EXPIRY = "tests/unit/test_snapshots_expiry.py"


@mutant("state: an aborted epoch's deltas stay", STATE)
def _deltas_stay() -> None:
    from epochal.backends.delta import DeltaBackend

    change(DeltaBackend, "abort", lambda _: lambda self, epoch, handles: None)


@mutant("state: what expires goes by the reader's clock, and not by the snapshot's", EXPIRY)
def _clock_of_the_reader() -> None:
    from time import time_ns

    from epochal.snapshots import key_walk, lineage
    from epochal.state.expiry import StateClock

    def by_now(_: Any) -> Any:
        def wrong(manifest: Any, table: Any) -> Any:
            return StateClock(event=time_ns() // 1000, processing=time_ns() // 1000)

        return wrong

    for module in (lineage, key_walk):
        change(module, "clock_of", by_now)


@mutant("state: views go by the latest clock there is, and not by that of their snapshot", STATE)
def _clock_of_the_latest() -> None:
    from epochal.state.expiry import StateClock
    from epochal.state.table import StateTable

    latest = StateClock(event=-(2**63), processing=0)

    def ahead(horizon: Any) -> Any:
        def wrong(self: Any, clock: Any) -> Any:
            nonlocal latest
            if clock is not None:
                latest = StateClock(max(latest.event, clock.event), max(latest.processing, clock.processing))
            return horizon(self, latest)

        return wrong

    change(StateTable, "horizon", ahead)


@mutant("state: new bases keep what has expired", STATE)
def _expired_rows_in_bases() -> None:
    from epochal.snapshots import base

    change(base, "without_expired", lambda _: lambda table, rows, clock: rows)


@mutant("state: a difference forgets what has expired between", EXPIRY)
def _difference_without_expiry() -> None:
    from epochal.snapshots import difference

    change(difference, "_expires_between", lambda _: lambda left, right, id: False)


@mutant("aggregate: of changes only what comes counts", "tests/unit/tasks/test_aggregate_changes.py")
def _plus_without_minus() -> None:
    from epochal.operators.aggregate_changes import AggregateChangesWork

    def wrong(run: Any) -> Any:
        return lambda self, subtask, rows: run(self, subtask, (b.filter(pc.greater(b["_rows"], 0)) for b in rows))

    change(AggregateChangesWork, "run", wrong)
