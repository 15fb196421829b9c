"""State far larger than the memory of its workers: applications of several sizes under one control plane.

Each application has a row of eleven longs for each key. Small epochs of random rows run in turns, one application after
the other. Then the processes are stopped by SIGTERM and started again.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figure import Figure, Panel
from benchmarks.result import percentile
from benchmarks.running import head, wait_for
from benchmarks.wide_rows import VALUES
from epochal.client import Client
from epochal.client.applications import ApplicationHandle
from epochal.testing.servers.control_plane import ControlPlane, control_plane, process_id

ARTIFACT = Path(__file__).parents[1] / "wide_rows.py"
FILLED_AN_EPOCH = 1_000_000
CONFIGURATION = {"parallelism": 2, "epoch_interval_seconds": 0.0, "retained_epochs": 5}
PATIENCE_SECONDS = 900
MERGED = re.compile(r"^(\S+ \S+) .*E7 retain: .* in ([\d.]+) s$")
WORKER = b"-m\0epochal.engine.worker_daemon"
WARM_DRIVER_SECONDS = 45


@dataclass(frozen=True)
class Sizes:
    """``turns`` of ``epochs`` with ``rows`` random rows; ``warm``: epochs before them that do not count."""

    keys: tuple[int, ...]
    rows: int
    epochs: int
    turns: int
    warm: int


FULL = Sizes((1_000_000, 20_000_000, 50_000_000), 10_000, 40, 4, 30)
QUICK = Sizes((2_000, 10_000), 100, 5, 1, 2)


def large_state(folder: Path, quick: bool) -> Figure:
    sizes = QUICK if quick else FULL
    found = _measured(folder, sizes)
    smallest = np.median(found[sizes.keys[0]].quiet)
    ratios = ", ".join(f"{np.median(each.quiet) / smallest:.2f} times at {keys:,}" for keys, each in found.items())
    merging = ", ".join(
        f"{np.median(each.during_merges) / np.median(each.quiet):.2f} times at {keys:,} keys"
        f" ({len(each.during_merges)} epochs)"
        for keys, each in found.items()
        if each.during_merges
    )

    def panel(y: str, *names: str) -> Panel:
        return Panel(y, {name: [(float(keys), _values(each)[name]) for keys, each in found.items()] for name in names})

    return Figure(
        "scale-large-state",
        "Large state",
        "keys of state",
        True,
        [
            panel(f"epoch of {sizes.rows:,} rows, ms", "p50", "p50 beside merges", "p99"),
            panel("anonymous memory, MB", "worker", "control plane"),
            panel("s", "first look-up", "cold start", "end of a driver and its workers", "end of the control plane"),
        ],
        f"Sums of ten `bigint` columns for each key; {sizes.turns} turns of {sizes.epochs} epochs, one application\n"
        f"after the other. Median of epochs without a merge, of those at {sizes.keys[0]:,} keys: {ratios}.\n"
        f"Epochs beside merges, of the others: {merging or 'there was no merge'}.\n"
        "The first look-up counts from the moment in which a new control plane answers; a cold start from the\n"
        "request until the first commit, without the cache of the machine, by a warm driver. Ends are after SIGTERM.",
    )


@dataclass
class Found:
    """Milliseconds of epochs; seconds of the rest."""

    quiet: list[float] = field(default_factory=list)
    during_merges: list[float] = field(default_factory=list)
    worker_bytes: int = 0
    control_plane_bytes: int = 0
    first_look_up: float = 0.0
    cold_start: float = 0.0
    driver_end: float = 0.0
    control_plane_end: float = 0.0


def _values(found: Found) -> Mapping[str, float]:
    every = [*found.quiet, *found.during_merges]
    return {
        "p50": percentile(found.quiet, 0.5),
        "p50 beside merges": percentile(found.during_merges or found.quiet, 0.5),
        "p99": percentile(every, 0.99),
        "worker": found.worker_bytes / 1e6,
        "control plane": found.control_plane_bytes / 1e6,
        "first look-up": found.first_look_up,
        "cold start": found.cold_start,
        "end of a driver and its workers": found.driver_end,
        "end of the control plane": found.control_plane_end,
    }


@dataclass
class _Application:
    keys: int
    folder: Path
    handle: ApplicationHandle
    chance: np.random.Generator
    fed: int = 0

    @staticmethod
    def submitted(client: Client, folder: Path, keys: int) -> _Application:
        name = f"wide-{keys}"
        (folder / name).mkdir(parents=True)
        artifact = client.artifacts.upload(ARTIFACT)
        parameters = {"folder": str(folder / name)}
        client.applications.create(name, artifact.sha256, parameters=parameters, configuration=CONFIGURATION)
        return _Application(keys, folder / name, client.application(name), np.random.default_rng(keys))

    def fill(self) -> None:
        for start in range(0, self.keys, FILLED_AN_EPOCH):
            self._write(np.arange(start, min(self.keys, start + FILLED_AN_EPOCH)))
        self.wait()

    def feed(self, epochs: int, rows: int) -> None:
        for _ in range(epochs):
            self._write(self.chance.integers(0, self.keys, rows))

    def wait(self) -> None:
        wait_for(lambda: head(self.handle) >= self.fed, f"{self.handle.name}", patience_seconds=PATIENCE_SECONDS)

    def _write(self, keys: np.ndarray) -> None:
        values = {name: self.chance.integers(0, 1 << 40, len(keys)) for name in VALUES}
        hidden = self.folder / f"_{self.fed:06}.parquet"
        pq.write_table(pa.table({"key": keys, **values}), hidden)
        hidden.rename(hidden.with_name(hidden.name[1:]))
        self.fed += 1

    def milliseconds(self, after: int) -> list[tuple[datetime, datetime, float]]:
        """Start, end and duration of each epoch after the first ``after``."""
        return [
            (epoch.started_at, epoch.committed_at, 1000 * (epoch.committed_at - epoch.started_at).total_seconds())
            for epoch in self.handle.epochs.list(limit=None, state="committed")
            if epoch.committed_at is not None and epoch.epoch > after
        ]

    def merges(self) -> list[tuple[datetime, datetime]]:
        found = []
        for line in self.handle.logs(tail=10_000):
            match = MERGED.match(line)
            if match:
                end = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").astimezone(UTC).timestamp()
                found.append((datetime.fromtimestamp(end - float(match[2]), UTC), datetime.fromtimestamp(end, UTC)))
        return found

    @property
    def driver(self) -> int:
        (execution,) = self.handle.executions.list(limit=1)
        return process_id(next(each.process or "" for each in execution.attempts if each.state == "running"))


def _measured(folder: Path, sizes: Sizes) -> dict[int, Found]:
    found: dict[int, Found] = {keys: Found() for keys in sizes.keys}
    with control_plane(folder / "plane", {"EPOCHAL_WARM_DRIVERS": ""}) as plane, plane.client() as client:
        applications = []
        for keys in sizes.keys:
            application = _Application.submitted(client, folder / "input", keys)
            application.fill()
            application.feed(sizes.warm, sizes.rows)
            application.wait()
            applications.append(application)
        begins = {application.keys: application.fed for application in applications}
        for _ in range(sizes.turns):
            for application in applications:
                with _memory(plane, application, found[application.keys]):
                    application.feed(sizes.epochs, sizes.rows)
                    application.wait()
        for application in applications:
            _divide(application, begins[application.keys], found[application.keys])
        _measure_ends(plane, client, applications, found)
        for application in applications:
            found[application.keys].cold_start = _cold_start(client, application, sizes.rows)
    return found


def _divide(application: _Application, after: int, found: Found) -> None:
    """Divide epochs into those beside a merge and the others."""
    merges = application.merges()
    for begun, end, milliseconds in application.milliseconds(after):
        beside = any(first < end and begun < last for first, last in merges)
        (found.during_merges if beside else found.quiet).append(milliseconds)


def _measure_ends(
    plane: ControlPlane, client: Client, applications: list[_Application], found: dict[int, Found]
) -> None:
    for application in applications:
        driver = application.driver
        processes = [driver, *(pid for pid, _ in _descendants(driver))]
        os.kill(driver, signal.SIGTERM)
        found[application.keys].driver_end = _seconds_until_ended(*processes)
    for application in applications:
        client.operations.wait(client.applications.stop(application.handle.name), timeout_seconds=60)
    for application in applications:
        pid = plane.process.pid
        os.kill(pid, signal.SIGTERM)
        ended = _seconds_until_ended(pid)
        plane.restart()
        state = application.handle.state("wide")
        asked = time.monotonic()
        state.get(application.keys - 1)
        found[application.keys].first_look_up = time.monotonic() - asked
        found[application.keys].control_plane_end = ended


def _cold_start(client: Client, application: _Application, rows: int) -> float:
    """Seconds of a start. An execution does not use the cache of an earlier one."""
    application.feed(1, rows)
    time.sleep(WARM_DRIVER_SECONDS)  # until a spare driver is ready
    before = head(application.handle)  # may be above the number of files: an epoch can have been aborted
    started = time.monotonic()
    client.applications.start(application.handle.name)
    wait_for(lambda: head(application.handle) > before, application.handle.name, patience_seconds=PATIENCE_SECONDS)
    seconds = time.monotonic() - started
    client.operations.wait(client.applications.stop(application.handle.name), timeout_seconds=60)
    return seconds


def _seconds_until_ended(*processes: int) -> float:
    return wait_for(lambda: not any(map(_runs, processes)), f"the end of processes {processes}", 0.02)


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    return False


@contextmanager
def _memory(plane: ControlPlane, application: _Application, found: Found) -> Iterator[None]:
    """Sample the largest anonymous memory of a Python worker of the application and of the control plane."""
    over = threading.Event()
    driver = application.driver

    def sample() -> None:
        while not over.wait(1.0):
            workers = [_anonymous(pid) for pid, command in _descendants(driver) if WORKER in command]
            found.worker_bytes = max(found.worker_bytes, *workers, 0)
            found.control_plane_bytes = max(found.control_plane_bytes, _anonymous(plane.process.pid))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _descendants(root: int) -> list[tuple[int, bytes]]:
    """Process ids and commands of the children of a process, and of theirs."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                children[int((entry / "stat").read_text().rpartition(")")[2].split()[1])].append(int(entry.name))
    found, pending = [], [root]
    while pending:
        for pid in children[pending.pop()]:
            pending.append(pid)
            with suppress(OSError):
                found.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes()))
    return found


def _anonymous(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    return 0
