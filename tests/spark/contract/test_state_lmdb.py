"""LMDB's local store is a cache shared by processes. No damage to its files changes the rows."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from epochal.backends import boot_folders, lmdb_environment
from epochal.backends.catch_up import Step
from epochal.backends.lmdb import LmdbBackend
from epochal.backends.lmdb_environment import Environment
from epochal.backends.recent import EncodedChanges
from epochal.contracts.identity import EpochKey
from epochal.contracts.state import StateTaskScope
from epochal.errors import StorageFull
from epochal.snapshots.store import SnapshotStore
from epochal.testing.state_world import COUNTS, GROUPS, OWNER, World, counted
from tests.spark.contract.local_stores import (
    Counts,
    LocalStoreHarness,
    counts_expected,
    counts_seen,
    filled,
    kill_task,
    overwrite,
    small_disk,
)


class Harness(LocalStoreHarness):
    @property
    def data_files(self) -> list[Path]:
        return sorted(self.cache.rglob("data.mdb"))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(LmdbBackend, tmp_path)


@pytest.fixture
def world(harness: Harness) -> World:
    return filled(harness)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("damage", [overwrite, halve, empty, remove_folder])
def test_damaged_files_are_discarded_and_rebuilt(
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


def test_process_detects_the_removal_of_its_open_cache(world: World, harness: Harness) -> None:
    shutil.rmtree(harness.cache)
    world.check()
    assert len(harness.data_files) == GROUPS


def test_unsynced_cache_is_discarded_after_a_reboot(
    world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = harness.data_files
    harness.new_worker()
    monkeypatch.setattr(boot_folders, "_boot", lambda: "another-boot")
    world.check()
    assert harness.data_files
    assert not set(harness.data_files) & set(before)


def test_workers_share_an_up_to_date_cache(world: World, harness: Harness) -> None:
    for chain in world.chains.values():
        for link in chain.links:
            for delta in link.deltas:
                harness.store.delete(delta.file.path)
    harness.new_worker()
    world.check()


def test_cache_with_another_key_format_is_not_read(
    world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version of Epochal has left the same rows on the machine, with keys of form 1."""
    files = harness.data_files
    with monkeypatch.context() as earlier:
        earlier.setattr(boot_folders, "FORM", 1)
        world.check()
    assert len(harness.data_files) == 2 * len(files)
    harness.new_worker()
    for path in set(harness.data_files) - set(files):
        overwrite(path)
    world.check()


def test_branches_have_separate_stores(world: World, harness: Harness) -> None:
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


def test_step_overtaken_by_another_worker_is_not_applied(tmp_path: Path) -> None:
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


@pytest.mark.claim("SDG, table 1, large state")
def test_a_full_lmdb_map_grows(world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_environment, "FIRST_MAP_BYTES", 64 << 10)
    harness.new_machine()
    world.check()
    world.run(counts=[{**row, "last": "x" * 2000} for row in counted(*range(1500))])
    world.check()
    assert max(path.stat().st_size for path in harness.data_files) > 64 << 10


def test_full_disk_of_the_cache_is_reported(world: World, harness: Harness, tmp_path: Path) -> None:
    with small_disk(96, tmp_path / "small") as folder:
        backend = LmdbBackend(OWNER, harness.store, str(folder))
        with pytest.raises(StorageFull, match=str(folder)):
            backend.start(world.scope(0))


@pytest.mark.alternating(2)
def test_processes_catch_up_concurrently(world: World, harness: Harness) -> None:
    for number in range(3):
        world.run_elsewhere(counts=counted(*range(number * 50, number * 50 + 100), count=number))
    old = world.fork(world.branch)
    world.run_elsewhere(counts=counted(*range(100), count=77))
    harness.new_worker()
    scopes = [old.scope(0), world.scope(0), world.scope(1), old.scope(1)] * 2
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.starmap(_counts, [(harness.store.url, str(harness.cache), scope) for scope in scopes])
    for scope, each, counts in zip(scopes, (old, world, world, old) * 2, found, strict=True):
        assert counts == counts_expected(each, scope.subtask)


def _counts(store: str, cache: str, scope: StateTaskScope) -> Counts:
    """The counts that a task in a separate process reads."""
    return counts_seen(LmdbBackend(OWNER, SnapshotStore(store), cache), scope)


def test_killed_writer_leaves_the_last_complete_step(world: World, harness: Harness, tmp_path: Path) -> None:
    world.run_elsewhere(counts=counted(*range(300), count=2))
    harness.new_worker()
    kill_task(_KILLED, world, harness, tmp_path)
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
