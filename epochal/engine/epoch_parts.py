"""The parts of an epoch's time: planning, Spark, Python, snapshot store, sinks, protocol.

Tasks run in parallel, but the parts of an epoch add up to its time. The tasks of one operator, or of one sink,
therefore count as if nothing else used the cluster: as long as the longest of them, or as all of them together divided
by the slots. Operators are added up, because one usually waits for the shuffle of the other; where they overlap, the
sum is scaled down to the time of the job. The remaining time of the job is Spark's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from epochal.contracts.measurements import EpochPart
from epochal.tasks.steps import TaskAnswer

Seconds = Mapping[EpochPart, float]
SLOTS_VALID_SECONDS = 30.0


@dataclass(frozen=True)
class JobTime:
    """Times within E2, in seconds. ``planning``: of the driver, before the actions. ``tasks``: of Python code in tasks,
    by part, as if only these tasks ran."""

    planning: float = 0.0
    tasks: Seconds = field(default_factory=dict)


@dataclass
class EpochTime:
    """Measurements of an epoch that is not published. ``before``: seconds of the search for input, before the epoch
    was opened. ``stored``: seconds that the driver wrote to the snapshot store."""

    before: float = 0.0
    stored: float = 0.0
    job: JobTime = JobTime()

    def parts(self, seconds: float, job_seconds: float, in_sinks: float) -> dict[EpochPart, float]:
        """Seconds by part. ``seconds``: from open to commit; ``job_seconds``: of E2; ``in_sinks``: of commits.

        No part is negative, and their sum is the time since the search for input.
        """
        whole = self.before + seconds
        ran = min(job_seconds, whole)
        planning = min(self.job.planning, ran)
        tasks = _within(self.job.tasks, ran - planning)
        driver = _within({"store": self.stored, "sink": max(0.0, in_sinks)}, whole - ran)
        return {
            "planning": planning,
            "spark": max(0.0, ran - planning - sum(tasks.values())),
            "python": tasks.get("python", 0.0),
            "store": tasks.get("store", 0.0) + driver["store"],
            "sink": tasks.get("sink", 0.0) + driver["sink"],
            "protocol": max(0.0, whole - ran - sum(driver.values())),
        }


def job_time(
    planning: float,
    operators: Mapping[str, Sequence[TaskAnswer]],
    written: Iterable[TaskAnswer],
    sinks: Collection[str],
    maps: Mapping[str, Sequence[float]],
    slots: int,
) -> JobTime:
    """Times of a job from the answers of its tasks. ``written``: answers of sinks, and of the tails of loops, which
    write records in flight to the snapshot store. ``maps``: seconds of the tasks of authors' stateless functions."""
    groups = [[_of_operator(answer) for answer in answers] for answers in operators.values()]
    groups += [[{"python": each} for each in seconds] for seconds in maps.values()]
    by_owner: dict[str, list[Seconds]] = {}
    for answer in written:
        part: EpochPart = "sink" if answer.handle.owner in sinks else "store"
        by_owner.setdefault(answer.handle.owner, []).append({part: _busy(answer)})
    tasks: dict[EpochPart, float] = {}
    for group in (*groups, *by_owner.values()):
        for part, seconds in in_parallel(group, slots).items():
            tasks[part] = tasks.get(part, 0.0) + seconds
    return JobTime(planning, tasks)


def in_parallel(tasks: Sequence[Seconds], slots: int) -> dict[EpochPart, float]:
    """Seconds that tasks take on this number of slots, divided among the parts as the seconds of all tasks."""
    totals: dict[EpochPart, float] = {}
    for task in tasks:
        for part, seconds in task.items():
            totals[part] = totals.get(part, 0.0) + seconds
    together = sum(totals.values())
    if not together:
        return {}
    longest = max(sum(task.values()) for task in tasks)
    took = max(longest, together / max(1, slots))
    return {part: took * seconds / together for part, seconds in totals.items()}


class Slots:
    """Number of tasks that run at the same time. It is cached for some seconds, because it is a call to the JVM."""

    def __init__(self) -> None:
        self._number = 0
        self._until = 0.0

    def of(self, spark: SparkSession, without_context: int) -> int:
        """``without_context``: the number for Spark Connect, whose clients do not know the cores."""
        if is_remote():
            return without_context
        if time.monotonic() >= self._until:
            self._number = spark.sparkContext.defaultParallelism
            self._until = time.monotonic() + SLOTS_VALID_SECONDS
        return self._number


def _of_operator(answer: TaskAnswer) -> Seconds:
    """T1 and T3 read and write state; the other work is Python's."""
    store = answer.seconds.get("T1", 0.0) + answer.seconds.get("T3", 0.0)
    return {"python": max(0.0, _busy(answer) - store), "store": store}


def _busy(answer: TaskAnswer) -> float:
    return 0.0 if answer.work is None else answer.work.busy_seconds


def _within(parts: Seconds, most: float) -> dict[EpochPart, float]:
    """The parts, scaled down if their sum exceeds ``most``."""
    together = sum(parts.values())
    scale = 1.0 if together <= most else most / together
    return {part: seconds * scale for part, seconds in parts.items()}
