"""Files that are read ahead: several at a time, in order, each once, within limits of number and bytes."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.errors import FileMissing, StoreUnavailable
from epochal.snapshots import read_ahead as module
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.read_ahead import read_ahead
from epochal.snapshots.store import SnapshotStore


class RemoteStore(SnapshotStore):
    """A store that counts as remote. ``begun``: number of reads by path; ``most``: of reads at the same time."""

    def __init__(self, url: str, together: int = 1) -> None:
        super().__init__(url)
        self.begun: Counter[str] = Counter()
        self.most = 0
        self.now = 0
        self.failing: dict[str, Exception] = {}
        self._barrier = threading.Barrier(together, timeout=10)
        self._lock = threading.Lock()

    @property
    def is_near(self) -> bool:
        return False

    def read(self, path: str, of: str = "the store") -> bytes:
        with self._lock:
            self.begun[path] += 1
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self._barrier.wait()
            if path in self.failing:
                raise self.failing[path]
            return super().read(path, of)
        finally:
            with self._lock:
                self.now -= 1


def written(store: SnapshotStore, sizes: list[int]) -> list[FileReference]:
    return [store.write_file(f"main/{number}", bytes([number % 256]) * size, 0) for number, size in enumerate(sizes)]


def test_requests_run_at_the_same_time(tmp_path: Path) -> None:
    """The barrier opens only if four reads have begun."""
    store = RemoteStore(str(tmp_path), together=4)
    files = written(store, [1, 2, 3, 4])
    ahead = read_ahead(store, files)
    assert [len(ahead.read_file(file, "x")) for file in files] == [1, 2, 3, 4]
    assert set(store.begun.values()) == {1}


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 5), st.integers(1, 100))
def test_each_file_is_read_once_within_the_limits(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], at_once: int, limit: int
) -> None:
    store = RemoteStore(str(tmp_path_factory.mktemp("store")))
    files = written(store, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        patch.setattr(module, "_BYTES", limit)
        ahead = read_ahead(store, files)
        for number, file in enumerate(files):
            assert ahead.read_file(file, "x") == bytes([number % 256]) * sizes[number]
            wanted = sum(sizes[number + 1 :][: len(store.begun) - number - 1])
            assert len(store.begun) - number - 1 <= at_once
            assert wanted <= limit or len(store.begun) - number - 1 <= 1
    assert all(count == 1 for count in store.begun.values()) and len(store.begun) == len(files)


def test_errors_are_raised_at_the_file_that_has_them(tmp_path: Path) -> None:
    store = RemoteStore(str(tmp_path))
    files = written(store, [1, 1, 1])
    store.failing["main/1"] = StoreUnavailable("away")
    store.delete("main/2")
    ahead = read_ahead(store, files)
    assert ahead.read_file(files[0], "x") == b"\0"
    with pytest.raises(StoreUnavailable, match="away"):
        ahead.read_file(files[1], "x")
    with pytest.raises(FileMissing, match="of state 'spent', is missing"):
        ahead.read_file(files[2], "state 'spent'")


def test_other_files_and_near_stores_are_read_as_usual(tmp_path: Path) -> None:
    store = RemoteStore(str(tmp_path))
    files = written(store, [1, 2, 3])
    ahead = read_ahead(store, files[:2])
    assert ahead.read_file(files[2], "x") == b"\2\2\2"
    near = SnapshotStore(str(tmp_path))
    assert read_ahead(near, files) is near
    assert read_ahead(store, files[:1]) is store
