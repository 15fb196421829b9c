"""Wrong watermarks, and wrong timers."""

from __future__ import annotations

from typing import Any

from tests.mutants.mutant import change, mutant

TIMERS = "tests/unit/tasks/test_process_timers.py"
WATERMARKS = "tests/unit/test_watermarks.py"


@mutant("timers: those that wait are lost with the attempt", TIMERS)
def _timers_lost() -> None:
    from epochal.tasks.stored_timers import _Domain

    change(_Domain, "due", lambda _: lambda self: iter(()))


@mutant("timers: one that is set behind a fired one expires with the epoch", TIMERS)
def _timers_expired() -> None:
    from epochal.tasks.timers import Timers

    change(Timers, "_put", lambda put: lambda self, timer, due: put(self, timer, min(due, max(timer[1], due - 1))))


@mutant("timers: one that fired while the clock stood fires again", TIMERS)
def _timers_again() -> None:
    from epochal.tasks.stored_timers import _Domain

    change(_Domain, "_unexpired", lambda _: lambda self, due: [])


@mutant("watermarks: lateness is judged by what fires in the epoch", WATERMARKS)
def _late_by_fire() -> None:
    from epochal.state import watermarks

    def eager(advanced: Any) -> Any:
        def wrong(before: Any, inputs: Any) -> Any:
            found = advanced(before, inputs)
            return found.model_copy(update={"late": found.fire})

        return wrong

    change(watermarks, "_advanced", eager)


@mutant("watermarks: the hold of an operator is forgotten", WATERMARKS)
def _forgotten_hold() -> None:
    from epochal.state import watermarks

    change(watermarks, "_hold", lambda _: lambda graph, name: 0)


@mutant("watermarks: idleness is by the clock on the wall, also while no driver ran", WATERMARKS)
def _idle_by_wall_clock() -> None:
    from epochal.state import watermarks

    change(watermarks, "_partitions", lambda real: lambda *arguments: real(*arguments[:-1], watermarks.BEGINNING))
