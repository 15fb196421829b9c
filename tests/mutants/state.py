"""Wrong ways to store, expire and change state."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from tests.mutants.mutant import change, mutant

STATE = "tests/spark/contract/test_state_backends.py"
EXPIRY = "tests/unit/test_snapshots_expiry.py"


@mutant("state: deltas of an aborted epoch are not deleted", STATE)
def _deltas_stay() -> None:
    from epochal.backends.delta import DeltaBackend

    change(DeltaBackend, "abort", lambda _: lambda self, epoch, handles: None)


@mutant("state: expiry is judged by the reader's clock, not by the snapshot's", EXPIRY)
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


@mutant("state: views use the latest clock, not that of their snapshot", STATE)
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


@mutant("state: new bases include expired rows", STATE)
def _expired_rows_in_bases() -> None:
    from epochal.snapshots import merging

    change(merging, "without_expired", lambda _: lambda table, rows, clock: rows)


@mutant("state: a difference omits rows that expired in between", EXPIRY)
def _difference_without_expiry() -> None:
    from epochal.snapshots import difference

    change(difference, "_expires_between", lambda _: lambda left, right, id: False)


@mutant("aggregate: retractions are ignored", "tests/unit/tasks/test_aggregate_changes.py")
def _plus_without_minus() -> None:
    from epochal.operators.aggregate.changes_work import AggregateChangesWork

    def wrong(run: Any) -> Any:
        return lambda self, subtask, rows: run(self, subtask, (b.filter(pc.greater(b["_rows"], 0)) for b in rows))

    change(AggregateChangesWork, "run", wrong)


UPGRADES = "tests/spark/test_accepted_upgrades.py"
ACCEPTANCE = "tests/service/test_acceptance.py"


@mutant(
    "upgrades: an aggregate added to existing keys is accepted",
    f"{UPGRADES}::test_only_aggregates_of_existing_keys_are_partial",
)
def _partial_columns_pass() -> None:
    from epochal.state import evolution

    change(evolution, "partial_columns", lambda found: lambda *tables: (found(*tables)[0], [], []))


@mutant(
    "upgrades: each version dates an added aggregate from its own first epoch",
    f"{UPGRADES}::test_a_computed_column_is_partial_if_its_parts_are",
)
def _since_of_the_latest_version() -> None:
    from epochal.state import continuing

    def wrong(counting: Any) -> Any:
        def as_if_added(declared: Any, before: Any, first: Any) -> Any:
            found = counting(declared, before, first)
            moved = [c if c.since is None else c.model_copy(update={"since": first}) for c in found.value]
            return found.model_copy(update={"value": tuple(moved)})

        return as_if_added

    change(continuing, "_counting", wrong)


@mutant("upgrades: the next version inherits the acceptance of a version", ACCEPTANCE)
def _acceptance_inherited() -> None:
    from dataclasses import replace

    from epochal.service.catalog.versions import acceptance_of
    from epochal.service.commands.proposals import Proposals

    def wrong(candidate: Any) -> Any:
        def inheriting(self: Any, *asked: Any) -> Any:
            found = candidate(self, *asked)
            return found if found.acceptance else replace(found, acceptance=acceptance_of(found.before))

        return inheriting

    change(Proposals, "candidate", wrong)


@mutant("upgrades: an acceptance survives a rollback to before its upgrade", ACCEPTANCE)
def _acceptance_outlives_its_snapshot() -> None:
    from epochal.service.catalog.versions import VersionRepository

    change(VersionRepository, "accept", lambda _: lambda self, application, acceptance: None)


@mutant("state: a delta that another run left in the machine's cache is read", "tests/unit/test_machine_deltas.py")
def _stale_delta() -> None:
    from epochal.backends.machine_deltas import MachineDeltas

    def wrong(bytes_of: Any) -> Any:
        def read(self: Any, file: Any, of: str) -> bytes:
            place = self._place(file)
            return place.read_bytes() if file.within is not None and place.exists() else bytes_of(self, file, of)

        return read

    change(MachineDeltas, "bytes_of", wrong)
