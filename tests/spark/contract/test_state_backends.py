"""Heap and LMDB satisfy the contract of state backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from epochal.backends import heap
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.backends.runs import lists, run, view
from epochal.backends.runs.hashing import Hashes, hash_keys
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import (
    DegradedStateHarness,
    FileAnswers,
    Losses,
    StateBackendContract,
    StateHarness,
    StepAnswers,
)
from epochal.testing.state_world import OWNER
from tests.spark.contract.local_stores import LocalStoreHarness


def few_hashes(keys: pa.BinaryArray, salt: int) -> Hashes:
    return hash_keys(keys, salt) & np.uint64(63)


@pytest.mark.claim("Thesis, 4.5.2", "Thesis, table 4.1, Local (Heap)")
class TestHeap(StateBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StateHarness:
        return LocalStoreHarness(HeapBackend, tmp_path)


class TestHeapInFiles(StateBackendContract):
    """Runs are always files, merged runs have many segments, a background thread does all merging, and many keys have
    the same hash."""

    @pytest.fixture
    def harness(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateHarness]:
        monkeypatch.setattr(lists, "FILE_ROWS", 1)
        monkeypatch.setattr(run, "SEGMENT_BYTES", 500)
        for module in (heap, view):
            monkeypatch.setattr(module, "hash_keys", few_hashes)
        yield LocalStoreHarness(HeapBackend, tmp_path)
        for each in heap.lists().values():
            each.wait()


@pytest.mark.claim("Thesis, table 4.1, Local (RocksDB)", "SDG, table 1, fine-grained updates")
class TestLmdb(StateBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StateHarness:
        return LocalStoreHarness(LmdbBackend, tmp_path, (tmp_path / "store").as_uri())


class TestHeapOverAnObjectStore(StateBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StateHarness:
        return LocalStoreHarness(HeapBackend, tmp_path, f"memory://{tmp_path}")


@pytest.mark.long  # TestLmdbDegraded writes the same files to the store, and also its cache
class TestHeapDegraded(StateBackendContract):
    """Every operation on a file of the store loses its result."""

    test_a_full_disk_is_said_so_and_leaves_nothing = None  # it counts the steps of one call

    @pytest.fixture
    def harness(self, tmp_path: Path) -> StateHarness:
        inner = LocalStoreHarness(HeapBackend, tmp_path)
        return DegradedStateHarness(inner, Losses(FileAnswers()))


class TestLmdbDegraded(StateBackendContract):
    """Every operation on a file of the store or the cache loses its result."""

    test_a_full_disk_is_said_so_and_leaves_nothing = None

    @pytest.fixture
    def harness(self, tmp_path: Path) -> StateHarness:
        inner = LocalStoreHarness(LmdbBackend, tmp_path)
        return DegradedStateHarness(inner, Losses(FileAnswers()))


@pytest.mark.long  # each of the two conditions is tested separately above
class TestHeapOverAnObjectStoreDegraded(StateBackendContract):
    """The result of every step is lost."""

    test_a_full_disk_is_said_so_and_leaves_nothing = None

    @pytest.fixture
    def harness(self, tmp_path: Path) -> StateHarness:
        inner = LocalStoreHarness(HeapBackend, tmp_path, f"memory://{tmp_path}")
        return DegradedStateHarness(inner, Losses(StepAnswers()))


@pytest.mark.parametrize(("name", "backend"), [("heap", HeapBackend), ("lmdb", LmdbBackend)])
def test_backends_are_found_by_name(name: str, backend: type[HeapBackend | LmdbBackend], tmp_path: Path) -> None:
    assert find(STATE_BACKENDS, name) is backend
    assert backend(OWNER, SnapshotStore(str(tmp_path)), str(tmp_path)).kind == name
