"""The snapshot store: atomic writes, checks on reading, errors that name the file."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import FileCorrupt, FileMissing, SnapshotError, StorageFull
from epochal.snapshots import layout
from epochal.snapshots.local_files import held_in_place, make_folder
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.storage_errors import storage_errors
from epochal.snapshots.store import SnapshotStore
from tests.kit.manifests import plain_manifest


@pytest.fixture(params=["path", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    urls = {"path": str(tmp_path / "s"), "file": (tmp_path / "s").as_uri(), "memory": f"memory://{tmp_path}/s"}
    return SnapshotStore(urls[request.param])


def test_a_folder_that_is_removed_during_a_write_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SnapshotStore(str(tmp_path / "s"))
    removed: list[Path] = []

    @contextmanager
    def removed_during_write(root: Path, path: Path, make: bool) -> Iterator[Path]:
        with held_in_place(root, path, make) as held:
            if not removed:
                make_folder(path.parent)
                store.remove_empty_folder("folder")
                removed.append(path)
            yield held

    monkeypatch.setattr("epochal.snapshots.store.held_in_place", removed_during_write)
    store.write("folder/file", b"bytes")
    assert removed and store.read("folder/file") == b"bytes"


def manifest(epoch: int, parent: ManifestReference | None = None) -> Manifest:
    return plain_manifest(
        epoch,
        application="a",
        parent=parent,
        attempt=3,
        parallelism=2,
        max_parallelism=16,
        created_at=datetime(2013, 1, 1, tzinfo=UTC),
    )


def test_files_and_manifests_are_read_as_written(store: SnapshotStore) -> None:
    file = store.write_file("main/epochs/1/x.parquet", b"content", rows=3)
    assert (file.sha256, file.bytes, file.rows) == (hashlib.sha256(b"content").hexdigest(), 7, 3)
    copy: SnapshotStore = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert copy.read_file(file, "main/1") == b"content"
    assert copy.size(file.path) == 7
    with copy.open(file, "main/1") as source:
        assert source.read() == b"content"


def test_files_are_listed_and_deleted(store: SnapshotStore) -> None:
    assert store.list("main") == []
    for path in ("main/b/2", "main/a/1", "other/3", "main/a/.1.tmp"):
        store.write(path, b"x")
    assert store.list("main") == ["main/a/.1.tmp", "main/a/1", "main/b/2"]
    assert store.list("main/a") == ["main/a/.1.tmp", "main/a/1"]
    assert store.delete("main/a/1") is True
    assert store.delete("main/a/1") is False
    store.delete("main/a/.1.tmp")
    store.remove_empty_folder("main/a")
    store.remove_empty_folder("main/b")
    assert store.list("main") == ["main/b/2"]


def test_errors_name_the_damaged_file(store: SnapshotStore) -> None:
    file = store.write_file("main/epochs/1/x.parquet", b"content", rows=3)
    store.write(file.path, b"cOntent")
    with pytest.raises(FileCorrupt, match=r"main/epochs/1/x\.parquet, of state 'x' at main/1"):
        store.read_file(file, "state 'x' at main/1")
    store.write(file.path, b"conten")
    with pytest.raises(FileCorrupt, match="7 bytes"):
        store.open(file, "main/1")
    store.delete(file.path)
    for read in (store.read_file, store.open):
        with pytest.raises(FileMissing, match=r"main/epochs/1/x\.parquet, of main/1, is missing"):
            read(file, "main/1")


def test_manifests_are_checked_against_their_reference(store: SnapshotStore) -> None:
    reference = store.write_manifest(manifest(1))
    assert reference == manifest(1).reference(reference.path)
    assert reference.path.startswith("main/manifests/0000000001-3-")
    assert store.read_manifest(reference) == manifest(1)
    foreign = ManifestReference(branch="main", epoch=2, path=reference.path, sha256="1" * 64)
    with pytest.raises(FileCorrupt, match=r"snapshot main/2"):
        store.read_manifest(foreign)
    missing = ManifestReference(branch="main", epoch=2, path="main/manifests/none.json", sha256="2" * 64)
    with pytest.raises(FileMissing, match=r"none\.json, of snapshot main/2"):
        store.read_manifest(missing)


def test_each_write_of_a_manifest_has_its_own_name(store: SnapshotStore) -> None:
    assert store.write_manifest(manifest(1)).path != store.write_manifest(manifest(1)).path


def test_a_write_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = SnapshotStore(str(tmp_path))
    store.write("main/there", b"x")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(SnapshotError, match=r"main/new cannot be written: .*Input/output error"):
        store.write("main/new", b"x")
    assert store.list("") == ["main/there"]


def test_files_are_synced_before_they_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def sync(descriptor: int) -> None:
        calls.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def name(source: Path, target: Path) -> None:
        calls.append(f"rename {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", name)
    SnapshotStore(str(tmp_path)).write("main/x.json", b"x")
    assert calls[0] == f"sync {tmp_path.name}"  # for the name of the new folder
    assert calls[1].startswith("sync .x.json.")
    assert calls[1].endswith(layout.TEMPORARY)
    assert calls[2:] == ["rename x.json", "sync main"]


def test_a_full_disk_is_reported_as_storage_full(tmp_path: Path, small_disk: Path) -> None:
    store = SnapshotStore(str(small_disk))
    store.write("main/fits", bytes(1000))
    with pytest.raises(StorageFull, match="main/large"):
        store.write("main/large", bytes(200_000))
    assert store.list("") == ["main/fits"]
    with pytest.raises(StorageFull, match="somewhere"), storage_errors("somewhere"):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_refused_write_names_the_processes_that_need_access(number: int) -> None:
    message = r"^somewhere cannot be written: .* Drivers and the control plane require"
    with pytest.raises(SnapshotError, match=message), storage_errors("somewhere"):
        raise OSError(number, os.strerror(number))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_names_of_deltas_contain_their_table() -> None:
    key = EpochKey("main", 7)
    path = layout.delta(key, "streaks.current-x", 3)
    assert path.startswith("main/epochs/0000000007/streaks.current-x-00003-")
    assert layout.table_of_delta(path) == "streaks.current-x"
    folder, _, name = path.rpartition("/")
    assert layout.table_of_delta(f"{folder}/.{name}.0a1b2c3d{layout.TEMPORARY}") == "streaks.current-x"
    assert layout.table_of_delta(f"{folder}/readme.txt") is None
    assert layout.belongs_to("streaks.current", "streaks") and layout.belongs_to("streaks", "streaks")
    assert not layout.belongs_to("streaks2", "streaks") and not layout.belongs_to("streaks2.a", "streaks")
