"""Packs: every file of an epoch is read back from its place, in near and remote stores, whatever was written beside
it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from fsspec.core import url_to_fs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey
from epochal.errors import FileCorrupt
from epochal.snapshots import layout
from epochal.snapshots import store as store_module
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.packs import TASK_BYTES, Pack, carried_by
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.task_files import TaskFiles
from tests.kit.manifests import plain_manifest

KEY = EpochKey("main", 1)


@pytest.fixture(params=["near", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SnapshotStore]:
    if request.param == "near":
        yield SnapshotStore(str(tmp_path / "store"))
        return
    store = SnapshotStore(f"memory://packs-{uuid4().hex}")
    yield store
    filesystem, root = url_to_fs(store.url)
    if filesystem.exists(root):
        filesystem.rm(root, recursive=True)


def task(store: SnapshotStore, subtask: int, contents: list[bytes], limit: int | None = None) -> Handle:
    """The handle of a task that has written these files."""
    files = TaskFiles(store, limit)
    written = [
        files.write_file(layout.delta(KEY, f"t{number}", subtask), pa.py_buffer(data), 1)
        for number, data in enumerate(contents)
    ]
    payload = {"deltas": [{"table": "t", "file": file.model_dump(mode="json")} for file in written]}
    return Handle(owner="o", subtask=subtask, rows=1, bytes=0, payload=payload, carried=files.carried)


def files_of(handle: Handle) -> list[FileReference]:
    return [FileReference.model_validate(delta["file"]) for delta in handle.payload["deltas"]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tasks=st.lists(st.lists(st.binary(max_size=40), max_size=4), min_size=1, max_size=3),
    limit=st.sampled_from([0, 30, TASK_BYTES]),
)
def test_files_are_read_from_their_places(store: SnapshotStore, tasks: list[list[bytes]], limit: int) -> None:
    handles = [task(store, subtask, contents, limit) for subtask, contents in enumerate(tasks)]
    files = carried_by(handles)
    manifest = plain_manifest(1)
    if not files:
        assert all(file.within is None for handle in handles for file in files_of(handle))
        return
    pack = Pack.of(KEY, 1, files)
    placed = [pack.placed(handle) for handle in handles]
    reference = store.write_manifest(manifest, pack)
    for _ in range(2):
        for handle, contents in zip(placed, tasks, strict=True):
            assert not handle.carried
            assert [store.read_file(file, "main/1") for file in files_of(handle)] == contents
            for file, data in zip(files_of(handle), contents, strict=True):
                assert (file.within is None) == (file.path not in files)
                half = len(data) // 2
                assert store.read_ranges(file, [(half, len(data) - half), (0, half)], "main/1") == [
                    data[half:],
                    data[:half],
                ]
        assert store.read_manifest(reference) == manifest
        store_module._packs.clear()  # as another process reads it
        store_module._manifests.clear()


def test_task_passes_files_up_to_its_limit(store: SnapshotStore) -> None:
    handle = task(store, 0, [b"1234", b"567", b"89", b"0"], limit=6)
    first, second, third, fourth = files_of(handle)
    assert list(handle.carried.values()) == [b"1234", b"89"]
    assert store.list("main") == sorted([second.path, fourth.path])
    assert {first.path, third.path} == handle.carried.keys()


def test_discarded_task_leaves_no_file(store: SnapshotStore) -> None:
    files = TaskFiles(store, 5)
    files.write_file("main/epochs/1/small", pa.py_buffer(b"12345"), 1)
    files.write_file("main/epochs/1/large", pa.py_buffer(b"123456"), 1)
    assert store.list("main") == ["main/epochs/1/large"]
    files.discard()
    assert store.list("main") == [] == list(files.carried)


def test_pack_that_is_too_short_is_damaged(store: SnapshotStore) -> None:
    handle = task(store, 0, [b"first", b"second"])
    pack = Pack.of(KEY, 1, handle.carried)
    first, second = files_of(pack.placed(handle))
    store.write(pack.path, pack.beginning[:-1])
    assert store.read_file(first, "main/1") == b"first"
    with pytest.raises(FileCorrupt, match="does not have the 6 bytes"):
        store.read_file(second, "main/1")
