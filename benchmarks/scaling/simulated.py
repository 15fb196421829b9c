"""The real engine without Spark, timed: coordinator, tasks, state, snapshots, catalog. Its tasks run one by one.

Measures Epochal's part on one core, independent of the machine: the driver, and each task.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from epochal import functions as F
from epochal.aggregates.plan import Aggregation
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.handle import Handle
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.engine.job import Answers, EpochPlan, EpochRunner, Participants
from epochal.operators.aggregate.work import AggregateWork
from epochal.service.catalog.standalone import standalone_catalog
from epochal.snapshots.manifest import DeltaFile, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column
from tests.kit.local_engine.attempt import LocalAttempt
from tests.kit.local_engine.engine import LocalOperator, LocalPipeline, local_program
from tests.kit.local_engine.plans import local_aggregation, partials
from tests.kit.local_engine.sources import LocalRows, LocalSource

ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64())])
COLD_EPOCHS = 2
"""Number of first epochs of an attempt that are not counted."""

_AGGREGATIONS = (Aggregation("rows", F.count("*")), Aggregation("total", F.sum("value")))
_KEY = (Column(name="key", type="bigint"),)


@dataclass(frozen=True)
class EpochCost:
    """Seconds of the driver and of each task; ``manifest`` in bytes."""

    driver: float
    tasks: Sequence[float]
    manifest: int


def median_of(costs: Sequence[EpochCost]) -> tuple[float, float, float]:
    """Milliseconds of the driver and of the slowest task, kilobytes of the manifest."""
    return (
        median(cost.driver for cost in costs) * 1e3,
        median(max(cost.tasks) for cost in costs) * 1e3,
        median(cost.manifest for cost in costs) / 1e3,
    )


@dataclass(frozen=True)
class Simulated:
    """An application of ``operators`` aggregates over one source. An epoch has one task for each subtask."""

    folder: Path
    operators: int = 1
    parallelism: int = 2
    state_backend: str | None = None
    rows: LocalRows = field(default_factory=partial(LocalRows, ROWS))

    @contextmanager
    def attempt(self) -> Iterator[Timed]:
        """The next attempt, which continues where the previous one stopped."""
        self.folder.mkdir(parents=True, exist_ok=True)
        backend = {} if self.state_backend is None else {"state_backend": self.state_backend}
        configuration = Configuration.model_validate(
            {"parallelism": self.parallelism, "max_parallelism": 512, "tolerable_failed_epochs": 0, **backend}
        )
        catalog = standalone_catalog(
            f"sqlite:///{self.folder / 'catalog.sqlite'}",
            "scale",
            "0" * 64,
            configuration=configuration.model_dump(mode="json"),
        )
        orders = ExecutionOrders(
            application="scale",
            execution=catalog.execution,
            attempt=catalog.attempt,
            artifact="0" * 64,
            configuration=configuration,
            store=str(self.folder / "store"),
            cache_directory=str(self.cache),
        )
        pipeline = LocalPipeline(
            {"rows": ROWS}, tuple(_counts(f"counts-{number}") for number in range(self.operators)), {}
        )
        store = SnapshotStore(orders.store)
        backend = find(STATE_BACKENDS, configuration.state_backend)
        participants = Participants(
            sources={"rows": LocalSource(self.rows)},
            operators={each.name: backend(each.name, store, orders.cache_directory) for each in pipeline.operators},
            sinks={},
            tables=pipeline.tables,
        )
        program = local_program(orders, pipeline, participants)
        runner = _TimedRunner(program.runner)
        running = LocalAttempt(replace(program, runner=runner), catalog)
        yield Timed(running, runner, self.rows)
        running.finish()

    @property
    def cache(self) -> Path:
        return self.folder / "cache"


@dataclass(frozen=True)
class Timed:
    """An attempt that returns the cost of its epochs."""

    running: LocalAttempt
    runner: _TimedRunner
    rows: LocalRows

    def epoch(self, keys: np.ndarray) -> EpochCost:
        """Run an epoch with one row for each of ``keys``."""
        self.rows.slices.append(pa.table([pa.array(keys, pa.int64()), pa.array(np.ones(len(keys), np.int64))], ROWS))
        started = time.perf_counter()
        manifest = self.running.epoch()
        self.running.commit_all()
        seconds = time.perf_counter() - started
        assert isinstance(manifest, Manifest)
        return EpochCost(seconds - self.runner.seconds, self.runner.tasks, len(manifest.encode()))


class _TimedRunner(EpochRunner):
    """Records the seconds of the last job and of each of its tasks."""

    def __init__(self, runner: EpochRunner) -> None:
        self._runner = runner
        self.seconds = 0.0
        self.tasks: Sequence[float] = ()

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        started = time.perf_counter()
        answers = self._runner.run(plan, timeout_seconds)
        self.seconds = time.perf_counter() - started
        self.tasks = [sum(steps.values()) for steps in answers.task_seconds]
        return answers

    def declaring(self, participants: Participants) -> EpochRunner:
        self._runner = self._runner.declaring(participants)
        return self

    def deltas(self, handle: Handle) -> tuple[DeltaFile, ...]:
        return self._runner.deltas(handle)


def _counts(name: str) -> LocalOperator:
    plan = local_aggregation(name, _KEY, _AGGREGATIONS, True, ROWS)
    table = plan.table
    output = pa.schema([column.to_arrow() for column in (*table.key, *table.value)])
    before = partial(_summed, plan)
    return LocalOperator(name, AggregateWork(plan), table.key, (table,), output, before=(before,))


def _summed(plan: object, rows: pa.Table) -> pa.Table:
    return partials(plan, rows, ("key",))  # type: ignore[arg-type]
