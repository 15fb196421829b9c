"""Helpers for the tests of both local stores: a harness, damaged files, a small disk, a process that is killed."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochal.backends import heap, lmdb, recent
from epochal.backends.delta import DeltaBackend
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.contracts.state import StateTaskScope
from epochal.snapshots.store import SnapshotStore
from epochal.state.access import TableAccess
from epochal.testing.state_world import COUNTS, GROUPS, OWNER, StateHarness, World, changes_of, counted, seen

Counts = dict[tuple[object, ...], int]
"""Counts by word and day."""


class LocalStoreHarness(StateHarness):
    """A backend over a store at ``url`` that caches the state it reads below ``folder``."""

    def __init__(self, backend: type[HeapBackend | LmdbBackend], folder: Path, url: str | None = None) -> None:
        self._backend = backend
        self._store = SnapshotStore(url or str(folder / "store"))
        self.cache = folder / "cache"

    @property
    def store(self) -> SnapshotStore:
        return self._store

    def make(self) -> DeltaBackend:
        return self._backend(OWNER, self.store, str(self.cache))

    def new_worker(self) -> None:
        for module in (heap, lmdb, recent):
            module.forget()

    def new_machine(self) -> None:
        self.new_worker()
        shutil.rmtree(self.cache, ignore_errors=True)


def filled(harness: StateHarness) -> World:
    """A world of one epoch, read once."""
    world = World(harness)
    world.run(counts=counted(*range(300)), seen=seen(1, b"a", b"x" * 600))
    world.check()
    return world


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


@contextmanager
def small_disk(kilobytes: int, folder: Path) -> Iterator[Path]:
    """A separate file system at ``folder``. Skips the test if it cannot be mounted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def counts_seen(backend: DeltaBackend, scope: StateTaskScope) -> Counts:
    """The counts that a task reads. All of them must exist."""
    transaction = backend.start(scope)
    rows = changes_of(COUNTS, counted(*range(300)))
    rows = rows.filter(rows.column("_kg").to_numpy() % 2 == scope.subtask)
    exists, values = TableAccess(COUNTS, transaction.view(COUNTS.id), GROUPS).get(rows)
    assert exists.all()
    keys = zip(rows.column("word").to_pylist(), rows.column("day").to_pylist(), strict=True)
    found = dict(zip(keys, values.column("count").to_pylist(), strict=True))
    transaction.discard()
    return found


def counts_expected(world: World, subtask: int) -> Counts:
    """The counts that a task must read."""
    counts = {key: row["count"] for key, row in world.expected[COUNTS.id].items()}
    rows = [dict(zip(("word", "day"), key, strict=True)) | {"count": 0} for key in counts]
    groups = changes_of(COUNTS, rows).column("_kg").to_pylist()
    return {key: count for (key, count), group in zip(counts.items(), groups, strict=True) if group % 2 == subtask}


def kill_task(script: str, world: World, harness: LocalStoreHarness, folder: Path) -> None:
    """Start a task in a process that kills itself as ``script`` specifies. The arguments of the script are the
    store, the cache and a file with the task's scope."""
    program, scope = folder / "killed.py", folder / "scope"
    program.write_text(script)
    scope.write_bytes(pickle.dumps(world.scope(0)))
    done = subprocess.run([sys.executable, str(program), harness.store.url, str(harness.cache), str(scope)])
    assert done.returncode == -9
