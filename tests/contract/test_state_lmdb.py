"""LMDB's local store is a cache: shared by processes, and whatever becomes of its files, the rows are right."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from epochal.backends import boot_folders, identity, lmdb, lmdb_environment, recent
from epochal.backends.catch_up import Step
from epochal.backends.lmdb import LmdbBackend
from epochal.backends.lmdb_environment import Environment
from epochal.backends.recent import EncodedChanges
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import StateTaskScope
from epochal.errors import StorageFull
from epochal.snapshots.store import SnapshotStore
from epochal.state.access import TableAccess
from epochal.testing.state_world import COUNTS, GROUPS, OWNER, StateHarness, World, changes_of, counted, seen


class Harness(StateHarness):
    def __init__(self, folder: Path) -> None:
        self._store = SnapshotStore(str(folder / "store"))
        self.cache = folder / "cache"

    @property
    def store(self) -> SnapshotStore:
        return self._store

    def make(self) -> LmdbBackend:
        return LmdbBackend(OWNER, self.store, str(self.cache))

    def new_worker(self) -> None:
        lmdb.forget()
        recent.forget()

    def new_machine(self) -> None:
        self.new_worker()
        shutil.rmtree(self.cache, ignore_errors=True)

    @property
    def data_files(self) -> list[Path]:
        return sorted(self.cache.rglob("data.mdb"))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


@pytest.fixture
def world(harness: Harness) -> World:
    world = World(harness)
    world.run(counts=counted(*range(300)), seen=seen(1, b"a", b"x" * 600))
    world.check()
    return world


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("damage", [overwrite, halve, empty, remove_folder])
def test_damaged_files_are_thrown_away_and_rebuilt(
    world: World, harness: Harness, damage: Callable[[Path], None]
) -> None:
    files = harness.data_files
    assert len(files) == GROUPS
    harness.new_worker()
    for path in files[::3]:
        damage(path)
    world.check()
    world.run(counts=counted(*range(5), count=9))
    world.check()
    assert not list(harness.cache.rglob("*.discarded"))


def test_a_removed_cache_is_noticed_by_the_process_that_has_it_open(world: World, harness: Harness) -> None:
    shutil.rmtree(harness.cache)
    world.check()
    assert len(harness.data_files) == GROUPS


def test_an_unsynced_cache_does_not_outlive_the_machines_boot(
    world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = harness.data_files
    harness.new_worker()
    monkeypatch.setattr(boot_folders, "_boot", lambda: "another-boot")
    world.check()
    assert harness.data_files
    assert not set(harness.data_files) & set(before)


def test_workers_share_what_one_has_brought_up_to_date(world: World, harness: Harness) -> None:
    for chain in world.chains.values():
        for link in chain.links:
            for delta in link.deltas:
                harness.store.delete(delta.file.path)
    harness.new_worker()
    world.check()


def test_a_cache_whose_keys_have_another_form_is_not_read(
    world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier version of Epochal has left on a machine: the very rows, with keys of form 1."""
    files = harness.data_files
    with monkeypatch.context() as earlier:
        earlier.setattr(identity, "FORM", 1)
        world.check()
    assert len(harness.data_files) == 2 * len(files)
    harness.new_worker()
    for path in set(harness.data_files) - set(files):
        overwrite(path)
    world.check()


def test_branches_have_stores_of_their_own(world: World, harness: Harness) -> None:
    fork = world.fork("fork")
    world.run(counts=counted(1, count=2))
    fork.run(counts=counted(1, count=3))
    for branch in (world, fork, world, fork):
        branch.check()
    for path in harness.store.list(""):
        harness.store.delete(path)
    harness.new_worker()
    for branch in (world, fork):
        branch.check()


def test_a_step_that_another_worker_has_overtaken_is_not_taken(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "one", [COUNTS.id])
    first, second, third = (EpochKey("main", epoch) for epoch in (1, 2, 3))

    def step(key: EpochKey, value: bytes) -> Step:
        changes = EncodedChanges(np.array([5], np.int32), [b"k"], [value])
        return Step(key, False, {COUNTS.id: (changes,)})

    assert environment.apply(step(first, b"1"), 5, None) is True
    assert environment.apply(step(second, b"2"), 5, first) is True
    assert environment.apply(step(third, b"x"), 5, first) is False
    assert environment.apply(step(third, b"x"), 5, None) is False
    read = environment.read()
    assert (read.mark, read.ranges(COUNTS.id, [None], [None], None)) == (second, ([1], [b"k"], [b"2"]))
    read.close()


def test_a_full_map_grows(world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_environment, "FIRST_MAP_BYTES", 64 << 10)
    harness.new_machine()
    world.check()
    world.run(counts=[{**row, "last": "x" * 2000} for row in counted(*range(1500))])
    world.check()
    assert max(path.stat().st_size for path in harness.data_files) > 64 << 10


def test_a_full_disk_under_the_cache_is_said_so(world: World, harness: Harness, small_disk: Path) -> None:
    backend = LmdbBackend(OWNER, harness.store, str(small_disk))
    with pytest.raises(StorageFull, match=str(small_disk)):
        backend.start(world.scope(0))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_processes_catch_up_side_by_side(world: World, harness: Harness) -> None:
    for number in range(3):
        world.run_elsewhere(counts=counted(*range(number * 50, number * 50 + 100), count=number))
    old = world.fork(world.branch)
    world.run_elsewhere(counts=counted(*range(100), count=77))
    harness.new_worker()
    scopes = [old.scope(0), world.scope(0), world.scope(1), old.scope(1)] * 2
    expected = [
        {key: row["count"] for key, row in each.expected[COUNTS.id].items()} for each in (old, world, world, old)
    ]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        seen_by_each = pool.starmap(_counts, [(harness.store.url, str(harness.cache), scope) for scope in scopes])
    for scope, found, wanted in zip(scopes, seen_by_each, expected * 2, strict=True):
        rows = [dict(zip(("word", "day"), key, strict=True)) | {"count": 0} for key in wanted]
        groups = changes_of(COUNTS, rows).column("_kg").to_pylist()
        mine = {
            key: count for (key, count), group in zip(wanted.items(), groups, strict=True) if group % 2 == scope.subtask
        }
        assert found == mine


def _counts(store: str, cache: str, scope: StateTaskScope) -> dict[tuple[object, ...], int]:
    """What a task in a process of its own sees of ``counts``."""
    transaction = LmdbBackend(OWNER, SnapshotStore(store), cache).start(scope)
    rows = changes_of(COUNTS, counted(*range(300)))
    rows = rows.filter(rows.column("_kg").to_numpy() % 2 == scope.subtask)
    found, values = TableAccess(COUNTS, transaction.view(COUNTS.id), GROUPS).get(rows)
    assert found.all()
    transaction.discard()
    keys = zip(rows.column("word").to_pylist(), rows.column("day").to_pylist(), strict=True)
    return dict(zip(keys, values.column("count").to_pylist(), strict=True))


def test_a_killed_writer_leaves_the_last_whole_step(world: World, harness: Harness, tmp_path: Path) -> None:
    world.run_elsewhere(counts=counted(*range(300), count=2))
    harness.new_worker()
    script = tmp_path / "killed.py"
    script.write_text(_KILLED)
    pickled = tmp_path / "scope"
    pickled.write_bytes(pickle.dumps(world.scope(0)))
    done = subprocess.run([sys.executable, str(script), harness.store.url, str(harness.cache), str(pickled)])
    assert done.returncode == -9
    world.check()


_KILLED = """
import os, pickle, sys
from epochal.backends import lmdb_environment
from epochal.backends.lmdb import LmdbBackend
from epochal.snapshots.store import SnapshotStore

write, calls = lmdb_environment._write, []

def killed_in_the_third(*arguments):
    write(*arguments)
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), 9)

lmdb_environment._write = killed_in_the_third
store, cache, scope = sys.argv[1:]
LmdbBackend("counts", SnapshotStore(store), cache).start(pickle.load(open(scope, "rb")))
"""
