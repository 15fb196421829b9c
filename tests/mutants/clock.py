"""Wrong epoch clocks."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

CLOCK = "tests/spark/test_epoch_clock.py"
ATTEMPT = f"{CLOCK}::test_attempt_uses_its_clock_for_epochs_reports_and_warnings"
DUE = "tests/simulation/test_due_and_in_flight.py"


@mutant("clock: epoch time follows every jump of the wall clock", f"{DUE} {CLOCK}")
def _follows_every_jump() -> None:
    from epochal.engine import clock

    change(clock, "advanced", lambda right: lambda state, reading, tolerance: right(state, reading, 2**63))
    change(clock, "SLEW", lambda _: 1)


@mutant("clock: the tolerance counts from the corrected time, so steps accumulate", CLOCK)
def _steps_accumulate() -> None:
    from dataclasses import replace

    from epochal.engine import clock

    def wrong(right: Any) -> Any:
        def advanced(state: Any, reading: Any, tolerance: int) -> Any:
            corrected = clock.Reading(state.first.wall + state.offset, state.first.elapsed)
            return right(replace(state, first=corrected, offset=0), reading, tolerance)

        return advanced

    change(clock, "advanced", wrong)


@mutant("clock: a wall clock within the tolerance is never followed", CLOCK)
def _never_followed() -> None:
    from dataclasses import replace

    from epochal.engine import clock

    change(clock, "advanced", lambda right: lambda *arguments: replace(right(*arguments), offset=0))


@mutant("clock: time during a suspension is not counted", CLOCK)
def _suspension_ignored() -> None:
    """Like CLOCK_MONOTONIC: a long gap between two readings does not count as elapsed time."""
    from epochal.engine import clock

    def wrong(right: Any) -> Any:
        def advanced(state: Any, reading: Any, tolerance: int) -> Any:
            return right(state, reading._replace(elapsed=min(reading.elapsed, state.elapsed + 10**9)), tolerance)

        return advanced

    change(clock, "advanced", wrong)


@mutant("clock: an attempt does not compare its clock with that of the catalog's database", CLOCK)
def _not_compared() -> None:
    from epochal.engine.clock import EpochClock

    change(EpochClock, "compare", lambda _: lambda self, asked, catalog_time: None)


@mutant("clock: epochs of an attempt read the wall clock", ATTEMPT)
def _epochs_read_the_wall_clock() -> None:
    from datetime import UTC, datetime

    from epochal.engine.coordinator import Coordinator

    def wrong(make: Any) -> Any:
        def made(self: Any, *arguments: Any, **named: Any) -> None:
            make(self, *arguments, **named)
            self.now = lambda: datetime.now(UTC)

        return made

    change(Coordinator, "__init__", wrong)
