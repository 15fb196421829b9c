"""Rate at which a backup copies, checks and lists files, compared with ``cp -r`` of the same store on the same disk.

``cp -r`` checks nothing and does not sync; a backup is on the disk when it ends. Therefore a second number compares
with ``cp -r`` followed by ``sync``.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.result import Result, at_least, number
from epochal.faults import FaultPoint
from epochal.snapshots.backup_format import Backups
from epochal.snapshots.copying import ToCopy, copy_all
from epochal.snapshots.store import SnapshotStore

LARGE_FILES, LARGE_BYTES = 48, 20_000_000
SMALL_FILES, SMALL_BYTES = 2_000, 20_000
ROUNDS = 3
_POINT = FaultPoint("benchmark", "a file is copied")


def run(folder: Path) -> list[Result]:
    store = SnapshotStore(str(folder / "store"))
    files = _fill(store)
    total = sum(file.bytes or 0 for file in files)
    target = folder / "copy"
    ways: dict[str, Callable[[], None]] = {
        "cp": lambda: _cp(folder / "store", target),
        "cp and sync": lambda: _cp(folder / "store", target, sync=True),
        "backup": lambda: _back_up(store, target, files),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            seconds[name].append(_timed(way))
            subprocess.run(["sync"], check=True)
            shutil.rmtree(target)
            subprocess.run(["sync"], check=True)
    rates = {name: total / median(taken) / 1e6 for name, taken in seconds.items()}
    how = f"{total / 1e9:.2f} GB in {len(files)} files, medians of {ROUNDS} alternating rounds"
    return [
        number("backup: rate", rates["backup"], "MB/s", f"{how}; with checksums, synced"),
        number("backup: cp -r", rates["cp"], "MB/s", "unchecked, not synced"),
        at_least("backup against cp -r", rates["backup"] / rates["cp"], 0.8, "times", how, digits=2),
        number("backup against cp -r and sync", rates["backup"] / rates["cp and sync"], "times", how, digits=2),
    ]


def _fill(store: SnapshotStore) -> list[ToCopy]:
    """Fill the store with some bases and many deltas whose contents do not compress."""
    random.seed(12)
    files = []
    sizes = [(f"main/bases/base-{index}", LARGE_BYTES) for index in range(LARGE_FILES)]
    sizes += [(f"main/epochs/{index // 4:010}/delta-{index}", SMALL_BYTES) for index in range(SMALL_FILES)]
    for path, size in sizes:
        data = random.randbytes(size)
        store.write(path, data)
        files.append(ToCopy(path, hashlib.sha256(data).hexdigest(), size))
    return files


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _cp(source: Path, target: Path, sync: bool = False) -> None:
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    if sync:
        subprocess.run(["sync", "-f", str(target)], check=True)


def _back_up(store: SnapshotStore, place: Path, files: list[ToCopy]) -> None:
    backups = Backups(str(place))
    copied = copy_all(store, backups.files, files, {}, lambda message: None, _POINT)
    if copied.problems:
        raise RuntimeError(copied.problems[0])
    backups.write_part("measured", "files", copied.files)
