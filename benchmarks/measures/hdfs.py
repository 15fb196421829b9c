"""The HDFS sink compared with the bare ``hdfs`` client and the same bytes; and the commit of a small epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hdfs import InsecureClient

from benchmarks.cpu import cpu_seconds
from benchmarks.result import Result, at_most, in_turns, number, percentile
from epochal.backends.file_formats import ROW_GROUP
from epochal.connectors import hdfs
from epochal.contracts.backend import SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.testing.servers.hdfs import HdfsServer
from epochal.testing.servers.hdfs import hdfs as hdfs_server

WIDE_ROWS, PAYLOAD_BYTES, NARROW_ROWS, BATCH_ROWS, TURNS = 300_000, 1_000, 1_000_000, 10_000, 4
SMALL_EPOCHS, SMALL_ROWS, WARM = 60, 1_000, 20


def run(folder: Path) -> list[Result]:
    with hdfs_server() as server:
        return [*same_bytes(server), *same_rows(server), *small_commits(server)]


def same_bytes(server: HdfsServer) -> list[Result]:
    """Compare with wide rows, which are cheap to encode as Parquet."""
    sink, bare = Sink(server), Bare(server)
    rows = wide(WIDE_ROWS)
    sink.epoch(rows)
    data = sink.written()
    ours, theirs = taken_in_turns(server, lambda: sink.epoch(rows), lambda: bare.write(data))
    our_rate, bare_rate = (len(data) / 1e6 / each.seconds for each in (ours, theirs))
    how = f"{WIDE_ROWS:,} rows of {PAYLOAD_BYTES:,} bytes an epoch, from the first row to the end of the commit"
    cpu = "{:.2f} s of this process's CPU, {:.2f} s of the servers'".format
    return [
        number("HDFS sink", our_rate, "MB/s", f"{how}; one task, no Spark; p50 of {TURNS} turns; {cpu(*ours.cpu)}", 0),
        number("bare hdfs client", bare_rate, "MB/s", f"the same bytes, prepared in memory; {cpu(*theirs.cpu)}", 0),
        in_turns("HDFS sink / bare hdfs client", theirs.turns, ours.turns, least=0.85),
    ]


def same_rows(server: HdfsServer) -> list[Result]:
    """Compare with pyarrow and the bare client for narrow rows, whose encoding dominates."""
    sink, bare = Sink(server), Bare(server)
    rows = narrow(NARROW_ROWS)
    ours, theirs = taken_in_turns(server, lambda: sink.epoch(rows), lambda: bare.write(parquet(rows)))
    our_rate, bare_rate = (NARROW_ROWS / each.seconds for each in (ours, theirs))
    how = f"{NARROW_ROWS:,} rows of four columns an epoch, from the first row to the end of the commit"
    return [
        number("HDFS sink, narrow rows", our_rate, "rows/s", how, digits=0),
        number("pyarrow and the bare hdfs client", bare_rate, "rows/s", "the same Parquet, written by hand", digits=0),
        in_turns("HDFS sink / pyarrow and the bare hdfs client", theirs.turns, ours.turns, least=0.8),
    ]


def small_commits(server: HdfsServer) -> list[Result]:
    sink = Sink(server, tasks=2)
    rows = narrow(SMALL_ROWS)
    times = [sink.epoch(rows) for _ in range(SMALL_EPOCHS)]
    p50 = percentile([each * 1000 for each in times[WARM:]], 0.5)
    how = f"{SMALL_ROWS:,} rows, from two tasks; the last {SMALL_EPOCHS - WARM} of {SMALL_EPOCHS}"
    return [at_most("HDFS sink, commit of a small epoch, p50", p50, 100, "ms", how, digits=1)]


class Sink:
    """``hdfs.sink`` without Spark: the work of its tasks and of the driver in an epoch."""

    def __init__(self, server: HdfsServer, tasks: int = 1) -> None:
        self.path = f"{server.create_folder()}/out"
        self.client = InsecureClient(server.url, user=server.user)
        self.backend = hdfs.sink(server.url, self.path, user=server.user).make(SinkPlace("out"))
        self.backend.recover(self._scope(0))
        self._tasks = tasks
        self._epoch = 0

    def epoch(self, rows: Sequence[pa.RecordBatch]) -> float:
        """Run one epoch, T1 to E5. Returns the seconds of E5."""
        self._epoch += 1
        scope = self._scope(self._epoch)
        handles: list[Handle] = []
        for task in range(self._tasks):
            transaction = self.backend.start(TaskScope(scope, "out", task))
            for batch in rows:
                transaction.write(batch)
            handles.append(transaction.pre_commit())
        return seconds(lambda: self.backend.commit(scope, handles))

    def written(self) -> bytes:
        """The file of the last epoch."""
        folder = f"{self.path}/epoch={self._epoch:010}"
        (name,) = self.client.list(folder)
        with self.client.read(f"{folder}/{name}") as file:
            return bytes(file.read())

    def _scope(self, epoch: int) -> EpochScope:
        return EpochScope("bench", EpochKey("bench", epoch), 1, EpochKey("bench", epoch - 1) if epoch > 1 else None)


class Bare:
    """The ``hdfs`` client without exactly-once delivery: one request for each file."""

    def __init__(self, server: HdfsServer) -> None:
        self.client = InsecureClient(server.url, user=server.user)
        self.path = server.create_folder()
        self._files = 0

    def write(self, data: bytes) -> None:
        self._files += 1
        self.client.write(f"{self.path}/{self._files}.parquet", data=data)


@dataclass
class Taken:
    """Times of one side by turn."""

    turns: list[float] = field(default_factory=list)
    """In seconds."""
    cpu_of_turns: list[tuple[float, float]] = field(default_factory=list)
    """CPU seconds of this process and of the servers."""

    @property
    def seconds(self) -> float:
        return percentile(self.turns, 0.5)

    @property
    def cpu(self) -> tuple[float, float]:
        own, servers = zip(*self.cpu_of_turns, strict=True)
        return percentile(own, 0.5), percentile(servers, 0.5)


def taken_in_turns(server: HdfsServer, ours: Callable[[], object], theirs: Callable[[], object]) -> list[Taken]:
    """Measure both in alternating order; the first turn warms the servers up and is not counted."""
    found = {ours: Taken(), theirs: Taken()}
    for turn in range(TURNS + 1):
        for work in (ours, theirs)[:: -1 if turn % 2 else 1]:
            own, servers = time.process_time(), cpu_of(server)
            took = seconds(work)
            if turn:
                found[work].turns.append(took)
                found[work].cpu_of_turns.append((time.process_time() - own, cpu_of(server) - servers))
    return list(found.values())


def cpu_of(server: HdfsServer) -> float:
    return cpu_seconds(server.name_node.pid) + cpu_seconds(server.data_node.pid)


def wide(rows: int) -> list[pa.RecordBatch]:
    """Numbered documents that do not compress."""
    chance = np.random.default_rng(7)
    ends = np.arange(rows + 1, dtype=np.int32) * PAYLOAD_BYTES
    data = [None, pa.py_buffer(ends), pa.py_buffer(chance.bytes(rows * PAYLOAD_BYTES))]
    payloads = pa.Array.from_buffers(pa.binary(), rows, data)
    found: list[pa.RecordBatch] = pa.table({"id": np.arange(rows), "document": payloads}).to_batches(
        max_chunksize=BATCH_ROWS
    )
    return found


def narrow(rows: int) -> list[pa.RecordBatch]:
    """Sensor readings: columns with and without repeated numbers."""
    chance = np.random.default_rng(7)
    table = pa.table(
        {
            "sensor": pa.array(chance.integers(0, 10_000, rows)),
            "at": pa.array(np.arange(rows) * 1_000, pa.timestamp("us", tz="UTC")),
            "value": pa.array(chance.normal(20, 5, rows)),
            "station": pa.array(chance.choice(["north", "south", "east", "west"], rows)),
        }
    )
    found: list[pa.RecordBatch] = table.to_batches(max_chunksize=BATCH_ROWS)
    return found


def parquet(rows: Sequence[pa.RecordBatch]) -> bytes:
    """Encode rows with the options of the sink's files."""
    buffer = BytesIO()
    pq.write_table(pa.Table.from_batches(rows), buffer, compression="zstd", row_group_size=ROW_GROUP)
    return buffer.getvalue()


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
