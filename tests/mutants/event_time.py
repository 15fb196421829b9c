"""Wrong watermarks and timers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from epochal.declarations.expressions import sql
from tests.mutants.mutant import change, mutant

TIMERS = "tests/unit/tasks/test_process_timers.py"
WATERMARKS = "tests/unit/test_watermarks.py"
CHAINS = "tests/unit/property/test_event_time_chains.py"
DUE = "tests/simulation/test_due_and_in_flight.py"
JOINS = "tests/unit/tasks/test_interval_join.py"
COMPILATIONS = "tests/spark/test_compilations.py"
SESSIONS = "tests/spark/property/test_session_buckets.py"
EVENT_TIME = "tests/spark/test_event_time.py"


@mutant("timers: pending timers are lost with the attempt", TIMERS)
def _timers_lost() -> None:
    from epochal.operators.process.stored_timers import _Domain

    change(_Domain, "due", lambda _: lambda self: iter(()))


@mutant("timers: a timer set before an already fired one expires with the epoch", TIMERS)
def _timers_expired() -> None:
    from epochal.operators.process.timers import Timers

    change(Timers, "_put", lambda put: lambda self, timer, due: put(self, timer, min(due, max(timer[1], due - 1))))


@mutant("timers: a timer that fired while the clock stood still fires again", TIMERS)
def _timers_again() -> None:
    from epochal.operators.process.stored_timers import _Domain

    change(_Domain, "_unexpired", lambda _: lambda self, due: [])


@mutant("watermarks: lateness is judged by the watermark that fires timers in the epoch", WATERMARKS)
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


@mutant("watermarks: idleness counts wall-clock time in which no driver ran", WATERMARKS)
def _idle_by_wall_clock() -> None:
    from epochal.state import watermarks

    change(watermarks, "_partitions", lambda real: lambda *arguments: real(*arguments[:-1], watermarks.BEGINNING))


@mutant("watermarks: the partition that is furthest ahead determines the watermark", CHAINS)
def _furthest_partition() -> None:
    from epochal.state import watermarks

    def furthest(inputs: Any) -> Any:
        def wrong(declaration: Any, clocks: Any, opening: Any) -> Any:
            return sorted(inputs(declaration, clocks, opening), key=lambda input: input.fire)[-1:]

        return wrong

    change(watermarks, "_inputs_of_declaration", furthest)


@mutant("watermarks: observed event times are missing in the manifest", CHAINS)
def _unobserved() -> None:
    from epochal.engine import manifests

    change(manifests, "observed", lambda _: lambda graph, clock, latest: clock)


@mutant("due: the manifest does not record due times", DUE)
def _nothing_due() -> None:
    from epochal.engine.job import Collected

    change(Collected, "due", lambda _: property(lambda self: {}))


@mutant("joins: a row is deleted when its own time has passed, although matching rows can still arrive", JOINS)
def _rows_of_joins_go_early() -> None:
    from epochal.operators.joins import interval_plan

    change(interval_plan, "gone_after", lambda gone_after: lambda high: gone_after(0))


@mutant("event time: generated code has the epoch's watermark", COMPILATIONS)
def _watermark_in_code() -> None:
    from epochal.declarations import event_time

    change(event_time, "_of_epoch", lambda _: lambda value, time: event_time._number(value))


@mutant("event time: the last microsecond before the epoch's watermark is not late", EVENT_TIME)
def _watermark_reached() -> None:
    from epochal.declarations import event_time

    change(event_time, "_of_epoch", lambda of: lambda value, time: of(value - 1, time))


@mutant("sessions: rows of one bucket are up to two gaps apart", SESSIONS)
def _wide_buckets() -> None:
    from epochal.declarations import event_time

    def wide(bucket: Any) -> Any:
        return lambda windows, column: bucket(replace(windows, gap=2 * windows.gap), column)

    change(event_time, "session_bucket", wide)


@mutant("sessions: a bucket ends a gap after its first row", SESSIONS)
def _short_buckets() -> None:
    from epochal.declarations import event_time

    def short(windows: Any, column: str) -> Any:
        start = f"min(unix_micros({column}))"
        return sql(f"timestamp_micros({start})"), sql(f"timestamp_micros({start} + {windows.gap}L)")

    change(event_time, "session_of_rows", lambda _: short)
