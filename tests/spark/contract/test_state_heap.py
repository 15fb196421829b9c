"""Heap's local store is a cache shared by processes. No damage to its files changes the rows."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.backends import boot_folders, heap, recent
from epochal.backends.heap import HeapBackend
from epochal.backends.runs import lists as runs_lists
from epochal.backends.runs import run
from epochal.backends.runs.lists import FAN_IN, Lists
from epochal.backends.runs.run_store import Shelf, name_of
from epochal.backends.runs.segment import Segment
from epochal.contracts.state import StateTaskScope
from epochal.errors import SnapshotError, StorageFull
from epochal.snapshots.merging import runs_for
from epochal.snapshots.store import SnapshotStore
from epochal.testing.state_world import (
    COUNTS,
    OWNER,
    Change,
    World,
    changes_of,
    check_view,
    counted,
    seen,
    uncounted,
    unseen,
)
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

SEGMENT_BYTES = 3000
"""So that merged runs have several segments."""


class Harness(LocalStoreHarness):
    def new_worker(self) -> None:
        settled()
        super().new_worker()

    @property
    def runs(self) -> list[Path]:
        return sorted(self.cache.rglob("*.run"))

    def files(self) -> list[str]:
        """The files of the store."""
        return list(self.store.list(""))

    @property
    def listed(self) -> set[str]:
        """The segments that the list of any epoch names."""
        lists = [json.loads(path.read_bytes()) for path in self.cache.rglob("at/*.json")]
        return {name for runs in lists for run in runs for name in run}


def settled() -> None:
    for each in heap.lists().values():
        each.wait()


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    monkeypatch.setattr(runs_lists, "FILE_ROWS", 1)
    monkeypatch.setattr(run, "SEGMENT_BYTES", SEGMENT_BYTES)
    heap.forget()
    yield Harness(HeapBackend, tmp_path)
    settled()


@pytest.fixture
def world(harness: Harness) -> World:
    return filled(harness)


def change_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path) -> None:
    path.write_bytes(b"not Arrow" * 100)


# Mapped files are replaced, not changed in place: truncating one would kill the process.
@pytest.mark.parametrize("damage", [overwrite, change_one_byte, halve, empty, swap, Path.unlink])
def test_damaged_files_are_discarded_and_rebuilt(
    world: World, harness: Harness, damage: Callable[[Path], None]
) -> None:
    world.run(counts=counted(*range(100, 400), count=2) + uncounted(*range(20)))
    world.check()
    files = harness.runs
    assert files
    harness.new_worker()
    for path in files:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        damage(path)
    world.check()
    world.run(counts=counted(*range(5), count=9))
    world.check()


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b"[]", b"[1, null]", b'"x"', b'["x"]', b"[[1]]"])
def test_damaged_list_is_ignored(world: World, harness: Harness, content: bytes) -> None:
    harness.new_worker()
    found = list(harness.cache.rglob("at/*.json"))
    assert found
    for path in found:
        path.write_bytes(content)
    world.check()


def test_view_survives_the_removal_of_its_cache(world: World, harness: Harness) -> None:
    view = world.start()
    old = world.fork(world.branch)
    shutil.rmtree(harness.cache)
    check_view(old, view, 0)
    for count in range(6):
        world.run(counts=counted(*range(30), count=count))
        world.check()
        check_view(old, view, 0)
    view.discard()
    settled()
    assert harness.listed <= {path.name for path in harness.runs}
    assert harness.listed


def test_unsynced_cache_is_discarded_after_a_reboot(
    world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = harness.runs
    harness.new_worker()
    monkeypatch.setattr(boot_folders, "_boot", lambda: "another-boot")
    world.check()
    assert harness.runs
    assert not set(harness.runs) & set(before)


def test_the_cache_of_another_user_is_refused(world: World, harness: Harness) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    (folder,) = (harness.cache / "heap").iterdir()
    os.chown(folder, 12345, -1)
    with pytest.raises(SnapshotError, match=f"{folder} belongs to user 12345"):
        world.start()


def test_cache_writable_by_other_users_is_discarded(world: World, harness: Harness) -> None:
    (folder,) = (harness.cache / "heap").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in harness.runs} == {0o600}
    folder.chmod(0o777)
    (folder / "planted").touch()
    harness.new_worker()
    world.check()
    assert not list(harness.cache.rglob("planted"))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_unused_caches_of_another_parallelism_are_deleted(world: World, harness: Harness) -> None:
    before = {path.parent for path in harness.runs if path.parent.name.endswith("-2")}
    assert before
    world.parallelism = 1
    world.run(counts=counted(1, count=2))
    world.check()
    assert before <= {path.parent for path in harness.runs}
    for folder in before:
        os.utime(folder / "at", (0, 0))
    world.run(counts=counted(2, count=2))
    world.check()
    assert not before & {path.parent for path in harness.runs}
    assert not list(harness.cache.rglob("*.discarded"))
    world.parallelism = 2
    world.check()


def test_rescale_reuses_the_caches_of_the_previous_subtasks(world: World, harness: Harness) -> None:
    for parallelism in (4, 3, 5, 2):
        for number in range(2):
            left = range(number * parallelism, 40)
            deleted = range(40, 40 + parallelism) if number else range(0)
            world.run(
                counts=counted(*left, count=parallelism) + uncounted(*deleted),
                seen=[entry for one in left for entry in seen(one, b"b", times=parallelism)]
                + [entry for one in deleted for entry in unseen(one - 40, b"b")],
            )
        world.check()
        settled()
        for path in harness.files():
            harness.store.delete(path)
        harness.new_worker()
        world.parallelism = parallelism
        world.check()
        harness.new_worker()
        world.check()


@pytest.mark.parametrize("whole", [True, False])
def test_rescale_works_without_the_caches_of_the_previous_subtasks(world: World, harness: Harness, whole: bool) -> None:
    """``whole``: as on the machine of the other subtask; otherwise only the lists are missing."""
    world.run(counts=counted(*range(100), count=2) + uncounted(*range(100, 200)))
    world.check()
    settled()
    lists = {path.parent for path in harness.cache.rglob("1-16-2/at/*.json")}
    assert lists
    for folder in lists:
        shutil.rmtree(folder.parent if whole else folder)
    world.parallelism = 3
    world.check()


def test_bases_written_after_a_rescale_include_the_epochs_before_it(world: World, harness: Harness) -> None:
    world.compact()
    for parallelism in (2, 3, 1):
        world.parallelism = parallelism
        world.run(counts=counted(*range(50 * parallelism, 50 * parallelism + 40), count=parallelism))
    world.compact()
    shutil.rmtree(harness.cache)
    harness.new_worker()
    world.check()


def test_rescale_back_includes_the_epochs_in_between(world: World, harness: Harness) -> None:
    for parallelism in (3, 2):
        world.parallelism = parallelism
        for number in range(3):
            world.run(counts=counted(*range(number + 1, 60), count=10 * parallelism + number) + uncounted(number))
            world.check()
    settled()
    for path in harness.files():
        harness.store.delete(path)
    world.parallelism = 3
    world.check()


def test_workers_share_an_up_to_date_cache(world: World, harness: Harness) -> None:
    for chain in world.chains.values():
        for link in chain.links:
            for delta in link.deltas:
                harness.store.delete(delta.file.path)
    harness.new_worker()
    world.check()


def test_new_worker_finds_small_and_large_runs(world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_lists, "FILE_ROWS", 50)
    for count in range(10):
        world.run(counts=counted(count, count + 100, count=count))
        world.check()
    for link in world.chains[COUNTS.id].links[:8]:
        for delta in link.deltas:
            harness.store.delete(delta.file.path)
    harness.new_worker()
    world.check()


def test_aborted_and_superseded_task_output_is_in_no_list(world: World, harness: Harness) -> None:
    aborted = world.pre_commit({COUNTS.id: counted(*range(10), count=66)})
    harness.make().abort(world.scope(0).epoch, aborted)
    attempts = [world.start(0) for _ in range(2)]
    for attempt, count in zip(attempts, (77, 5), strict=True):
        world.stage(attempt, {COUNTS.id: counted(*range(10), count=count)}, 0)
    loser, winner = (attempt.pre_commit() for attempt in attempts)
    in_a_process = multiprocessing.get_context("spawn").Pool(1)
    with in_a_process as pool:
        other = pool.apply(_attempt, (harness.store.url, str(harness.cache), world.scope(0), 88))
    rest = [each for each in world.pre_commit({COUNTS.id: counted(*range(10), count=5)}) if each.subtask == 1]
    backend = harness.make()
    backend.sweep(world.scope(0).epoch, [winner, *rest])
    world.publish([winner, *rest], {COUNTS.id: counted(*range(10), count=5)})
    for _ in range(2):
        world.check()
        settled()
        undecided = {
            name_of(delta.file.path) for handle in (*aborted, loser, other) for delta in backend.deltas(handle)
        }
        assert len(undecided) == 4
        assert not undecided & harness.listed
        assert name_of(backend.deltas(winner)[0].file.path) in harness.listed
        harness.new_worker()


def _attempt(store: str, cache: str, scope: StateTaskScope, count: int) -> object:
    """Another copy of a task, in a separate process. It finds the files that the first copy has not released."""
    runs_lists.FILE_ROWS = 1
    transaction = HeapBackend(OWNER, SnapshotStore(store), cache).start(scope)
    rows = changes_of(COUNTS, counted(*range(10), count=count))
    transaction.stage(COUNTS.id, rows.filter(rows.column("_kg").to_numpy() % 2 == scope.subtask))
    return transaction.pre_commit()


def test_branches_from_one_epoch_are_isolated(world: World, harness: Harness) -> None:
    other = world.fork("fork")
    for count in (2, 3):
        world.run(counts=counted(*range(300), count=count))
        other.run(counts=counted(*range(300), count=10 * count))
        for each in (world, other, world):
            each.check()
            harness.new_worker()


def test_processes_catch_up_and_merge_concurrently(world: World, harness: Harness) -> None:
    for number in range(FAN_IN + 2):
        world.run_elsewhere(counts=counted(*range(number * 40, number * 40 + 100), count=number))
    old = world.fork(world.branch)
    world.run_elsewhere(counts=counted(*range(100), count=77))
    harness.new_worker()
    scopes = [old.scope(0), world.scope(0), world.scope(1), old.scope(1)] * 2
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(_counts, [(harness.store.url, str(harness.cache), scope) for scope in scopes])
    for scope, each, counts in zip(scopes, (old, world, world, old) * 2, found, strict=True):
        assert counts == counts_expected(each, scope.subtask)
    world.check()


def _counts(store: str, cache: str, scope: StateTaskScope) -> Counts:
    """The counts that a task in a separate process reads, before and after a merge."""
    runs_lists.FILE_ROWS = 1
    found = []
    for _ in range(2):
        found.append(counts_seen(HeapBackend(OWNER, SnapshotStore(store), cache), scope))
        settled()
    assert found[0] == found[1]
    return found[0]


def segments_of(world: World) -> tuple[Segment, ...]:
    """The segments of the oldest run of ``counts``."""
    _, lists = runs_of(world)
    *_, oldest = next(reversed(lists._known.values()))
    return oldest.segments


def runs_of(world: World, subtask: int = 0) -> tuple[int, Lists]:
    """The number of runs in a task's view of ``counts``, and the lists that contain them."""
    alone = replace(world.scope(subtask), tables=(COUNTS,), chains={COUNTS.id: world.chains[COUNTS.id]})
    view = world.copied().open_views(alone)[COUNTS.id]  # type: ignore[attr-defined]
    lists: Lists = view._lists
    return len(next(reversed(lists._known.values()))), lists


def test_a_merge_divides_a_large_run(world: World, harness: Harness) -> None:
    for number in range(FAN_IN + 1):
        kept = range(100 * number + 1, 100 * number + 100)  # keys of this epoch only, so that each row counts
        world.run(counts=counted(*kept, count=number) + uncounted(max(0, 100 * number - 50)))
        world.check()
        settled()
    world.check()
    check_divided(segments_of(world))


def test_a_restore_makes_a_segment_of_each_large_file(
    world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "_RESTORED_BYTES", 1)
    world.run(counts=counted(*range(400)))
    world.compact()
    files = runs_for(world.chains[COUNTS.id].bases, world.scope(0).groups)
    shutil.rmtree(harness.cache)
    harness.new_worker()
    world.check()
    segments = segments_of(world)
    assert len(segments) == len(files)
    check_divided(segments)


def check_divided(segments: Sequence[Segment]) -> None:
    """Check that there are several small segments without common key groups."""
    assert len(segments) > 1
    assert sum(len(segment) for segment in segments) > 100
    assert all(segment.nbytes < 2 * SEGMENT_BYTES for segment in segments)
    groups = [group for segment in segments for group in segment.key_groups.tolist()]
    assert len(groups) == len(set(groups))


def test_run_of_a_delta_exists_before_the_next_epoch(world: World, harness: Harness) -> None:
    handles = world.pre_commit({COUNTS.id: counted(*range(10), count=2)})
    settled()
    deltas = [delta for handle in handles for delta in harness.make().deltas(handle)]
    made = {name_of(delta.file.path) for delta in deltas}
    assert len(made) == 2
    assert made <= {path.name for path in harness.runs} - harness.listed
    world.publish(handles, {COUNTS.id: counted(*range(10), count=2)})
    for delta in deltas:
        harness.store.delete(delta.file.path)
    recent.forget()
    world.check()
    assert made <= harness.listed


def test_only_one_process_merges_at_a_time(world: World, harness: Harness) -> None:
    _, lists = runs_of(world)
    with Shelf(lists.shelf.folder).merging() as alone:
        assert alone
        for number in range(FAN_IN + 1):
            world.run(counts=counted(*range(100), count=number))
            world.check()
            settled()
        assert runs_of(world)[0] == FAN_IN + 2
    world.check()
    settled()
    world.check()
    assert runs_of(world)[0] == 1


def test_merging_is_not_deferred_above_the_maximum_number_of_runs(
    world: World, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_lists, "MOST", 6)
    with Shelf(runs_of(world)[1].shelf.folder).merging():
        for number in range(20):
            world.run(counts=counted(*range(100), count=number))
            world.check()
            assert runs_of(world)[0] <= 7


@pytest.fixture
def small_cache(harness: Harness) -> Iterator[Path]:
    with small_disk(192, harness.cache) as folder:
        yield folder
        settled()


def test_full_disk_is_reported_while_a_run_is_written(small_cache: Path, harness: Harness) -> None:
    world = World(harness)
    world.run_elsewhere(counts=_wide(range(400)))
    with pytest.raises(StorageFull, match=str(small_cache)):
        world.start(0)
    assert not harness.runs
    assert not list(small_cache.rglob("*.part"))
    world.run_elsewhere(counts=uncounted(*range(400)))
    world.compact()
    world.check()


def test_full_disk_during_a_merge_does_not_stop_epochs(
    small_cache: Path, harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(harness, 1)
    for number in range(FAN_IN):
        world.run(counts=_wide(range(number * 20, number * 20 + 20)))
        world.check()
    settled()
    assert "were not merged" in caplog.text
    assert "no space left" in caplog.text
    assert runs_of(world)[0] == FAN_IN
    assert not list(small_cache.rglob("*.part"))
    world.check()


def _wide(numbers: range) -> list[Change]:
    return [{**row, "last": f"{row['word']}{'x' * 1500}"} for row in counted(*numbers)]


def test_files_of_a_killed_writer_are_ignored(world: World, harness: Harness, tmp_path: Path) -> None:
    world.run_elsewhere(counts=counted(*range(300), count=2))
    harness.new_worker()
    before = harness.listed
    kill_task(_KILLED, world, harness, tmp_path)
    assert list(harness.cache.rglob("*.part"))
    assert harness.listed == before
    world.check()


_KILLED = """
import os, pickle, sys
from epochal.backends.heap import HeapBackend
from epochal.backends.runs import lists, segment_file
from epochal.snapshots.merging import runs_for
from epochal.snapshots.store import SnapshotStore

lists.FILE_ROWS = 1
write = segment_file._Checked.write

def killed_in_between(self, data):
    write(self, data)
    if self.length > 1000:
        self.flush()
        os.kill(os.getpid(), 9)

segment_file._Checked.write = killed_in_between
store, cache, scope = sys.argv[1:]
HeapBackend("counts", SnapshotStore(store), cache).start(pickle.load(open(scope, "rb")))
"""
