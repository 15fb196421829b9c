"""Wrong ways to divide an epoch's time into parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.mutants.mutant import change, mutant

UNIT = "tests/unit/test_epoch_parts.py"
SPARK = "tests/spark/test_epoch_parts.py"


@mutant("epoch parts: tasks count as if one ran after the other", UNIT)
def _one_after_the_other() -> None:
    from epochal.engine import epoch_parts

    change(epoch_parts, "in_parallel", lambda in_parallel: lambda tasks, slots: in_parallel(tasks, 1))


@mutant("epoch parts: a long task is divided by the slots", UNIT)
def _divided() -> None:
    from epochal.engine import epoch_parts

    def wrong(in_parallel: Any) -> Any:
        def shared(tasks: Any, slots: int) -> Any:
            return {part: seconds / slots for part, seconds in in_parallel(tasks, 1).items()}

        return shared

    change(epoch_parts, "in_parallel", wrong)


@mutant("epoch parts: tasks that overlap exceed the job", UNIT)
def _not_scaled() -> None:
    from epochal.engine import epoch_parts

    change(epoch_parts, "_within", lambda _: lambda parts, most: dict(parts))


@mutant("epoch parts: the search for input is left out", UNIT)
def _without_the_search() -> None:
    from epochal.engine.epoch_parts import EpochTime

    def wrong(parts: Any) -> Any:
        def without(self: EpochTime, *seconds: float) -> Any:
            return parts(EpochTime(0.0, self.stored, self.job), *seconds)

        return without

    change(EpochTime, "parts", wrong)


@mutant("epoch parts: a sink works while it waits for its rows", "tests/unit/tasks/test_fused_sink_task.py")
def _busy_while_waiting() -> None:
    from epochal.tasks.sink import SinkTask
    from epochal.tasks.steps import StepClock

    def wrong(call: Any) -> Any:
        def busy(self: SinkTask, batches: Iterable[Any]) -> Any:
            reading, StepClock.reading = StepClock.reading, lambda clock, rows: rows  # type: ignore[method-assign]
            try:
                yield from call(self, batches)
            finally:
                StepClock.reading = reading  # type: ignore[method-assign]

        return busy

    change(SinkTask, "__call__", wrong)


@mutant("epoch parts: the job of an operator with two readers is planning", SPARK)
def _jobs_are_planning() -> None:
    from epochal.engine.spark_runner import _EpochJob

    def wrong(collected: Any) -> Any:
        def timed(self: _EpochJob, frame: Any) -> Any:
            since = self._planned_since
            rows = collected(self, frame)
            self._planned_since = since
            return rows

        return timed

    change(_EpochJob, "_collected", wrong)


@mutant("epoch parts: seconds of stateless functions do not reach the driver", SPARK)
def _without_maps() -> None:
    from epochal.tasks import map_seconds

    change(map_seconds, "take", lambda _: dict)
