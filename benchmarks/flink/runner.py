"""Runs a query in Flink, in a process of the environment ``.flink``.

The process has one JVM with Flink's local cluster: a task manager with two slots, and the job manager.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.flink import queries
from benchmarks.sessions import CORES, DRIVER_MEMORY
from epochal.testing.servers.process import free_port

ENVIRONMENT = Path(__file__).parents[2] / ".flink"
PYTHON = ENVIRONMENT / "bin" / "python"
VERSION = "2.3.0"
LIMIT_SECONDS = 1_800.0
MANAGED_MEMORY = "2g"
"""Memory outside the JVM's heap, of which RocksDB's cache and write buffers are a part."""
MINI_BATCH_SECONDS, MINI_BATCH_ROWS = 2, 50_000
HEAP, ROCKSDB = "hashmap", "rocksdb"
"""The two state backends."""
MEMORY = {HEAP: "8g", ROCKSDB: DRIVER_MEMORY}
"""Heap of the JVM. With state on the heap, joins keep all bids of a run in it."""


@dataclass(frozen=True)
class Progress:
    """Times in seconds: number of events read at times of a run, and the time of its end."""

    samples: tuple[tuple[float, int], ...]
    finished: float

    def rate(self, first: int, total: int) -> float:
        """Events a second from the time at which ``first`` events had been read to the end of the job.

        Raises ``ValueError`` if no sample precedes that time.
        """
        before = [(at, events) for at, events in self.samples if events < first]
        after = [(at, events) for at, events in self.samples if events >= first]
        if not before:
            raise ValueError(f"no progress was seen before {first:,} events: the input is too small")
        (at, events), (later, more) = before[-1], after[0] if after else (self.finished, total)
        reached = at + (later - at) * (first - events) / (more - events)
        return (total - first) / (self.finished - reached)


def missing() -> str | None:
    """Reason why Flink cannot run, or ``None``."""
    return None if PYTHON.exists() else "Flink is not installed: make .flink/.ready"


def write_input(source: Path, folder: Path) -> None:
    """Join the JSON files of ``source`` to as many files as there are readers.

    Flink assigns the files of a folder to its readers in no particular order. With one file for each reader, both read
    their events in the order of time, which watermarks require.
    """
    folder.mkdir(parents=True)
    files = sorted(source.glob("*.json"))
    for number in range(CORES):
        with (folder / f"{number}.json").open("wb") as joined:
            for file in files[number::CORES]:
                with file.open("rb") as part:
                    shutil.copyfileobj(part, joined)


def run(query: str, source: Path, state: str, checkpoint_seconds: float, work: Path) -> Progress:
    """Run a query over the files in ``source``, with its files in ``work``; its rows are in ``work/output``.

    Raises ``RuntimeError`` with the end of its output if it fails.
    """
    work.mkdir(parents=True, exist_ok=True)
    port = free_port()
    orders = {
        "configuration": configuration(state, checkpoint_seconds, port, work),
        "statements": [*queries.tables(source), queries.sink(query, work / "output", checkpoint_seconds)],
        "insert": queries.insert(query),
        "port": port,
    }
    (work / "orders.json").write_text(json.dumps(orders))
    log = work / "log.txt"
    command = [
        str(PYTHON),
        str(Path(__file__).with_name("job.py")),
        str(work / "orders.json"),
        str(work / "answer.json"),
    ]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))},
        "JAVA_TOOL_OPTIONS": f"-Xmx{MEMORY[state]}",
        "FLINK_LOG_DIR": str(work / "logs"),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=work, env=environment, start_new_session=True
        )
        try:
            code: int | None = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    if code != 0:
        raise RuntimeError(f"{query} with {state} failed in Flink:\n{log.read_text(errors='replace')[-3000:]}")
    answer = json.loads((work / "answer.json").read_text())
    return Progress(tuple((at, events) for at, events in answer["samples"]), answer["finished"])


def configuration(state: str, checkpoint_seconds: float, port: int, work: Path) -> Mapping[str, str]:
    """Flink's options."""
    return {
        "parallelism.default": str(CORES),
        "taskmanager.numberOfTaskSlots": str(CORES),
        "taskmanager.memory.managed.size": MANAGED_MEMORY,
        "taskmanager.memory.network.min": "256m",
        "taskmanager.memory.network.max": "256m",
        "rest.bind-address": "127.0.0.1",
        "rest.address": "127.0.0.1",
        "rest.port": str(port),
        "rest.bind-port": str(port),
        "metrics.fetcher.update-interval": "100 ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.interval": f"{int(checkpoint_seconds * 1000)} ms",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": (work / "checkpoints").as_uri(),
        "state.backend.type": state,
        "state.backend.rocksdb.localdir": str(work / "rocksdb"),
        "io.tmp.dirs": str(work / "temporary"),
        "restart-strategy.type": "disable",
        "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": f"{MINI_BATCH_SECONDS} s",
        "table.exec.mini-batch.size": str(MINI_BATCH_ROWS),
        "table.optimizer.distinct-agg.split.enabled": "true",
    }


def described() -> str:
    """The options of :func:`configuration` that matter, for the results page."""
    return (
        f"Flink's options: parallelism {CORES}; exactly-once checkpoints at the interval of Epochal's epochs in the\n"
        f"same round, incremental with RocksDB; mini-batches of {MINI_BATCH_ROWS:,} rows or {MINI_BATCH_SECONDS} s;\n"
        "distinct aggregates split; objects reused; no expiry of state. Its local cluster is one JVM with\n"
        f"{MEMORY[ROCKSDB]} of heap and {MANAGED_MEMORY} of managed memory with RocksDB, and {MEMORY[HEAP]} of heap\n"
        "with state on the heap. Its files roll at the same interval, so that a checkpoint commits them."
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its JVM, which share a process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
