"""Cost of delivery guarantees: the same rows by each guarantee into PostgreSQL and Kafka, alternating.

Sinks run without Spark: two tasks in separate processes, as Spark's Python workers, write (T1 to T3), then this process
commits (E5).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from benchmarks.result import Result, number, percentile
from epochal.connectors import dbms, kafka
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.pipeline.definitions import SinkDefinition
from epochal.secrets import secret
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.kafka import kafka as kafka_server
from epochal.testing.servers.postgresql import postgresql

TASKS, TURNS, BATCH_ROWS = 2, 5, 10_000
UPSERTS, RECORDS = 100_000, 200_000
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])

Define = Callable[[Delivery], SinkDefinition]


def run(folder: Path) -> list[Result]:
    with postgresql() as server:
        (folder / "password").write_text(server.password)
        password = secret(f"file:{folder / 'password'}")
        url = f"postgresql://epochal@127.0.0.1:{server.port}/postgres"

        def table(delivery: Delivery) -> SinkDefinition:
            return dbms.sink(url, delivery, keys="id", create=True, delivery=delivery, password=password)

        upserts = compared(
            "PostgreSQL upserts", table, ("exactly_once", "idempotent", "at_least_once"), UPSERTS, folder
        )
    with kafka_server() as broker:
        topic = broker.create_topic(TASKS)

        def records(delivery: Delivery) -> SinkDefinition:
            return kafka.sink(broker.bootstrap, topic, delivery=delivery)

        produced = compared("Kafka", records, ("exactly_once", "at_least_once"), RECORDS, folder)
    return [*upserts, *produced]


def compared(what: str, define: Define, deliveries: Sequence[Delivery], rows: int, folder: Path) -> list[Result]:
    """Measure all deliveries in alternation; the first turn, which fills tables and connects, is not counted."""
    with ExitStack() as stack:
        sinks = {each: stack.enter_context(Sink(define(each), each, folder / what)) for each in deliveries}
        taken: Mapping[Delivery, list[tuple[float, float]]] = {each: [] for each in deliveries}
        for turn in range(TURNS + 1):
            for each, sink in sinks.items():
                taken[each].append(sink.epoch(turn, rows))
    found, first = [], 0.0
    for each in deliveries:
        turns = taken[each][1:]
        tasks, commit = (percentile(column, 0.5) for column in zip(*turns, strict=True))
        whole = percentile(list(map(sum, turns)), 0.5)
        parts = f"{tasks:.2f} s in tasks, {commit:.3f} s in E5; p50 of {TURNS} turns"
        how = f"{rows:,} rows an epoch by {TASKS} tasks: {parts}"
        found.append(number(f"{what}, {each}: an epoch", whole, "s", how))
        if each == "exactly_once":
            first = whole
        else:
            found.append(number(f"{what}, exactly_once / {each}", first / whole, "times"))
    return found


class Sink:
    """The sink of one delivery, with the processes of its tasks."""

    def __init__(self, definition: SinkDefinition, delivery: Delivery, folder: Path) -> None:
        self._backend = definition.make(SinkPlace(delivery, SnapshotStore(str(folder / delivery)), delivery))
        self._processes = [ProcessPoolExecutor(1, get_context("spawn")) for _ in range(TASKS)]
        self._delivery, self._epoch = delivery, 0

    def __enter__(self) -> Sink:
        self._backend.check(SCHEMA)
        self._backend.recover(self._scope(0))
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes:
            process.shutdown()

    def epoch(self, turn: int, rows: int) -> tuple[float, float]:
        """Run one epoch. Returns the seconds of T1 to T3 of all tasks and of E5."""
        self._epoch += 1
        scope, backend = self._scope(self._epoch), cloudpickle.dumps(self._backend)  # type: ignore[no-untyped-call]
        numbered = list(enumerate(self._processes))
        for ready in [process.submit(prepare, turn, subtask, rows) for subtask, process in numbered]:
            ready.result()
        started = time.perf_counter()
        written = [
            process.submit(write, backend, TaskScope(scope, self._delivery, subtask), turn, rows)
            for subtask, process in numbered
        ]
        handles = [each.result() for each in written]
        prepared = time.perf_counter()
        self._backend.commit(scope, handles)
        return prepared - started, time.perf_counter() - prepared

    def _scope(self, epoch: int) -> EpochScope:
        return EpochScope("bench", EpochKey("bench", epoch), 1, EpochKey("bench", epoch - 1) if epoch > 1 else None)


def prepare(turn: int, subtask: int, rows: int) -> None:
    """Create the rows before the measured task begins."""
    batches(turn, subtask, rows)


def write(pickled: bytes, task: TaskScope, turn: int, rows: int) -> Handle:
    """Run one task of an epoch in this worker process."""
    backend: SinkBackend = cloudpickle.loads(pickled)
    transaction = backend.start(task)
    for batch in batches(turn, task.subtask, rows):
        transaction.write(batch)
    return transaction.pre_commit()


@cache
def batches(turn: int, subtask: int, rows: int) -> list[pa.RecordBatch]:
    """The rows of a task in random order. Tasks have disjoint keys."""
    chance = np.random.default_rng((turn, subtask))
    ids = chance.permutation(rows // TASKS) * TASKS + subtask
    columns: dict[str, Any] = {
        "id": ids,
        "name": pa.array([f"customer {id} in turn {turn}" for id in ids]),
        "amount": chance.random(len(ids)),
    }
    found: list[pa.RecordBatch] = pa.table(columns, schema=SCHEMA).to_batches(max_chunksize=BATCH_ROWS)
    return found
