"""Applications without Spark for property tests, with epochs, aborts, restarts and rescaling."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from uuid import uuid4

import hypothesis.strategies as st
import pyarrow as pa
from fsspec.core import url_to_fs
from hypothesis import Phase, settings
from pyspark.sql.types import StructType

from epochal.backends import heap
from epochal.contracts.backend import SinkBackend
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.contracts.source import PARTITION
from epochal.engine.assembly import heads_of, tails_of
from epochal.engine.coordinator import Coordinator
from epochal.engine.job import Participants
from epochal.errors import EpochAborted, Fenced
from epochal.faults import FaultPoint, injected
from epochal.pipeline.pipeline import Pipeline
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.cuts.recorder import Recorder
from tests.kit.local_engine.attempt import LocalAttempt
from tests.kit.local_engine.engine import local_program
from tests.kit.local_engine.plans import local_pipeline
from tests.kit.local_engine.sources import HandleSink, LocalRows, LocalSource, rows_of

Row = dict[str, Any]
Disruption = Literal["nothing", "abort", "die", "die decided", "restart"]
MAX_PARALLELISM = 8
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TIMESTAMP = pa.timestamp("us", "UTC")
_ABORTED_AT, _DIES_AT, _DIES_DECIDED_AT = "E3.collected", "E4.manifest-written", "E4.prepared"


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Step:
    """One epoch over the next rows.

    ``disruption``: the fault or restart in the epoch. ``parallelism``: the parallelism from this epoch on.
    ``parallelisms``: those of single operators.
    ``clock``: the time in seconds; ``None`` leaves it unchanged, and it can go back.
    """

    disruption: Disruption = "nothing"
    parallelism: int = 2
    clock: float | None = None
    parallelisms: Mapping[str, int] = field(default_factory=dict)


DISRUPTIONS: st.SearchStrategy[Disruption] = st.sampled_from(
    ("nothing", "nothing", "abort", "die", "die decided", "restart")
)
PARALLELISM = st.sampled_from((1, 2, 3))


def steps(least: int = 1, most: int = 6) -> st.SearchStrategy[list[Step]]:
    """Return a strategy for ``least`` to ``most`` epochs; the clock does not move."""
    return st.lists(st.builds(Step, DISRUPTIONS, PARALLELISM), min_size=least, max_size=most)


@dataclass
class Life:
    """``columns``: the columns of each source. ``partitions``: the partitions of partitioned sources."""

    pipeline: Pipeline
    columns: Mapping[str, pa.Schema]
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    state_backend: str = "heap"
    clock: datetime = BEGIN
    parallelism: int = 2
    parallelisms: Mapping[str, int] = field(default_factory=dict)
    recorder: Recorder | None = None
    """Records the actions of tasks."""
    make_sink: Callable[[str], SinkBackend] = HandleSink
    keeps_caches: bool = False
    """All attempts share one cache folder."""
    compact_after_epochs: int = 50
    most: int | None = None
    """Maximum number of records of a loop in a slice."""

    def __post_init__(self) -> None:
        self._graph = self.pipeline.graph()
        self.rows = {name: LocalRows(schema, self.partitions.get(name, ())) for name, schema in self.columns.items()}
        self._local = local_pipeline(self._graph, self.columns)
        self._store = SnapshotStore(f"memory://lives-{uuid4().hex}")
        self._caches = TemporaryDirectory(prefix="epochal-lives-")
        self._catalog = MemoryCatalogState()
        self._attempt: LocalAttempt | None = None

    def __enter__(self) -> Life:
        logging.disable(logging.CRITICAL)  # the faults of a test cause expected log records
        return self

    def __exit__(self, *raised: object) -> None:
        logging.disable(logging.NOTSET)
        self._caches.cleanup()
        filesystem, root = url_to_fs(self._store.url)
        if filesystem.exists(root):
            filesystem.rm(root, recursive=True)

    def live(self, epochs: Sequence[Mapping[str, Sequence[Row]]], steps: Sequence[Step]) -> None:
        """Run an epoch for each element of ``epochs``, its rows by source. ``steps`` repeat cyclically."""
        for number, rows in enumerate(epochs):
            self.epoch(steps[number % len(steps)], **rows)
        self.settle(50 if self.most is None else 500)

    def epoch(self, step: Step = Step(), **rows: Sequence[Row]) -> None:
        """Run an epoch over these rows by source, after the step's fault. No epoch runs without rows or due work."""
        for name, given in rows.items():
            if given:
                self.rows[name].give(given)
        self.clock = self.clock if step.clock is None else at(step.clock)
        match step.disruption:
            case "restart":
                self.restart(step.parallelism, step.parallelisms)
            case "abort":
                self._failing(_ABORTED_AT, OSError("the disk has failed"))
            case "die" | "die decided":
                decided = step.disruption == "die decided"
                self._failing(_DIES_DECIDED_AT if decided else _DIES_AT, Fenced("the driver has died"))
                self.restart(step.parallelism, step.parallelisms)
                if decided:
                    return
        self._running.epoch(self.most)

    def settle(self, most: int = 50) -> None:
        """Run epochs until no work is due at the current time."""
        for _ in range(most):
            if self._running.epoch(self.most) is None:
                return
        raise AssertionError(f"work is still due after {most} epochs")

    def commit_due(self) -> None:
        """Make every commit that is due at the current time."""
        self._running.commit_due()

    def finish(self) -> None:
        """Commit every decided epoch and end the attempt."""
        self._running.finish()
        self._attempt = None

    def restart(self, parallelism: int | None = None, parallelisms: Mapping[str, int] | None = None) -> None:
        """Begin another attempt, which has only the stored state. The numbers of subtasks stay as they are by
        default."""
        self.parallelism = parallelism or self.parallelism
        self.parallelisms = self.parallelisms if parallelisms is None else parallelisms
        heap.forget()
        number = self._catalog.attempt + 1
        orders = ExecutionOrders(
            application="lives",
            execution="one",
            attempt=number,
            artifact="none",
            configuration=Configuration(
                parallelism=self.parallelism,
                parallelisms=dict(self.parallelisms),
                max_parallelism=MAX_PARALLELISM,
                compact_after_epochs=self.compact_after_epochs,
                state_backend=self.state_backend,
            ),
            store=self._store.url,
            cache_directory=str(self.caches if self.keeps_caches else self.caches / f"{self._catalog.branch}-{number}"),
        )
        make_state = find(STATE_BACKENDS, self.state_backend)
        participants = Participants(
            sources={
                **{name: LocalSource(rows) for name, rows in self.rows.items()},
                **heads_of(self._graph, self._store),
            },
            operators={
                operator.name: make_state(operator.name, self._store, orders.cache_directory)
                for operator in self._local.operators
            },
            sinks={name: self.make_sink(name) for name in self._local.sinks},
            tables=self._local.tables,
            loops=tails_of(self._graph, self._store),
        )
        program = local_program(orders, self._local, participants)
        if self.recorder is not None:
            program = self.recorder.recorded(program)
        self.program = program
        self._attempt = LocalAttempt(program, MemoryCatalog(self._catalog, number), lambda: self.clock)

    def upgrade(self, pipeline: Pipeline) -> None:
        """Begin another attempt with another version. Raises ``IncompatibleState``."""
        self._graph = pipeline.graph()
        self._local = local_pipeline(self._graph, self.columns)
        self.restart()

    def continue_from(self, epoch: int, branch: str) -> None:
        """Continue from an older snapshot on a new branch, as a fork and a rollback do. Later input is read again."""
        self._catalog = MemoryCatalogState(branch=branch, forked_from=self._catalog.epochs[epoch].manifest)
        self.restart()

    @property
    def _running(self) -> LocalAttempt:
        if self._attempt is None:
            self.restart()
        assert self._attempt is not None
        return self._attempt

    def _failing(self, point: str, error: Exception) -> None:
        with failing_at(point, error) as fired:
            try:
                self._running.epoch(self.most)
            except (EpochAborted, Fenced):
                assert fired

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of all decided epochs."""
        return [self._store.read_manifest(reference) for reference in self.decided]

    @property
    def caches(self) -> Path:
        return Path(self._caches.name)

    @property
    def coordinator(self) -> Coordinator:
        return self._running.coordinator

    @property
    def store(self) -> SnapshotStore:
        return self._store

    @property
    def decided(self) -> list[ManifestReference]:
        """The references of all decided epochs."""
        return [record.manifest for record in self._catalog.decided if record.manifest]

    def shown(self, sink: str) -> list[list[Row]]:
        """Return the rows that the sink shows, by epoch. Versions without the sink contribute no rows."""
        written = [manifest.sinks.get(sink) for manifest in self.manifests]
        return [rows_of(sink.handles if sink is not None else ()) for sink in written]

    def all_of(self, sink: str) -> list[Row]:
        return [row for rows in self.shown(sink) for row in rows]

    @property
    def late(self) -> Counter[str]:
        """The number of late rows, by operator."""
        return sum((Counter(manifest.counts.late_rows) for manifest in self.manifests), Counter())

    def state(self, table: str) -> list[Row]:
        """Return the rows of the state table after the last epoch."""
        assert self._catalog.head is not None
        found: list[Row] = SnapshotReader(self._store, self._catalog.head).read(table).to_pylist()
        return found


@contextmanager
def failing_at(name: str, error: Exception) -> Iterator[list[str]]:
    fired: list[str] = []

    def fault(point: FaultPoint, epoch: int | None) -> None:
        if point.name == name and not fired:
            fired.append(name)
            raise error

    with injected(fault):
        yield fired


def of_partition(partition: str, rows: Sequence[Row]) -> list[Row]:
    return [{**row, PARTITION: partition} for row in rows]


def cut(rows: Sequence[Row], cuts: Sequence[int]) -> list[list[Row]]:
    """Cut ``rows`` at these places (in percent), without reordering them."""
    bounds = [0, *sorted(len(rows) * place // 100 for place in cuts), len(rows)]
    return [list(rows[first:end]) for first, end in pairwise(bounds)]


def examples(usual: int) -> settings:
    """Return settings with ``usual`` examples in a profile of 25 examples, and proportionally in others."""
    count = max(usual * settings().max_examples // 25, 1)
    # An explanation would need more runs than all other phases.
    phases = [phase for phase in settings().phases if phase is not Phase.explain]
    return settings(max_examples=count, deadline=None, phases=phases)


def struct(**columns: str) -> StructType:
    """Return the struct that an author's class defines, without Spark, which parses DDL text with a JVM."""
    found = StructType()
    for name, type in columns.items():
        found = found.add(name, type)
    return found
