"""A control plane reads only files of a branch's lineage, whatever files a driver's manifest names."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import Clock, EpochConditions, EpochQueries
from epochal.contracts.identity import EpochKey
from epochal.errors import FileCorrupt, ForeignFile
from epochal.snapshots.lineage_bounds import Lineage, LineageStore
from epochal.snapshots.manifest import BaseFile, DeltaFile, FileInFlight, FileReference, Manifest, RecordsInFlight
from epochal.snapshots.store import SnapshotStore

CATALOG: dict[str, Lineage] = {
    "mine": {"mine": None, "origin": 5},
    "origin": {"origin": None},
    "theirs": {"theirs": None},
}
SHA = "0" * 64


class Catalog:
    def of(self, branch: str) -> Lineage | None:
        return CATALOG.get(branch)


@pytest.fixture
def store(tmp_path: Path) -> LineageStore:
    return LineageStore(str(tmp_path), Catalog())


def file(path: str) -> FileReference:
    return FileReference(path=path, sha256=SHA, bytes=1, rows=1)


def delta(path: str) -> dict[str, Any]:
    return {"deltas": (DeltaFile(table="t", subtask=0, parallelism=1, file=file(path)),)}


def base(path: str, at: EpochKey | None = None) -> dict[str, Any]:
    key = at or EpochKey("mine", 6)
    return {"bases": (BaseFile(table="t", at=key, first_group=0, last_group=1, file=file(path)),)}


def loop(path: str) -> dict[str, Any]:
    return {"loops": {"l": RecordsInFlight(columns=(), files=(FileInFlight(file=file(path), first=0, last=1),))}}


def queries(path: str) -> dict[str, Any]:
    chosen = EpochQueries(path=path, sha256=SHA, bytes=1, rows=1, through=1)
    return {"conditions": EpochConditions(clock=Clock(epoch_time=0), queries=chosen)}


def parent(branch: str, epoch: int, path: str | None = None) -> dict[str, Any]:
    path = path or f"{branch}/manifests/{epoch:010}-1-{'a' * 32}.json"
    return {"parent": ManifestReference(branch=branch, epoch=epoch, path=path, sha256=SHA)}


def write_manifest(store: SnapshotStore, branch: str = "mine", **more: Any) -> ManifestReference:
    plain: dict[str, Any] = {
        "application": "flights",
        "branch": branch,
        "epoch": 7,
        "parent": None,
        "execution": "e",
        "attempt": 1,
        "artifact": SHA,
        "parallelism": 1,
        "max_parallelism": 2,
        "conditions": EpochConditions(clock=Clock(epoch_time=0)),
        "created_at": datetime(2030, 1, 1, tzinfo=UTC),
    }
    return store.write_manifest(Manifest(**{**plain, **more}))


UNIQUE = "b" * 32
OWN = [
    {},
    delta(f"mine/epochs/0000000007/t-00000-{UNIQUE}.parquet"),
    base(f"mine/bases/t-0000000006-0-1-{UNIQUE}.parquet"),
    base(f"origin/bases/t-0000000005-0-1-{UNIQUE}.parquet"),
    loop(f"mine/loops/0000000007/l-00000-{UNIQUE}.parquet"),
    loop(f"origin/loops/0000000005/l-00000-{UNIQUE}.parquet"),
    queries(f"origin/queries/0000000004-{UNIQUE}.json"),
    parent("mine", 6),
    parent("origin", 5),
    parent("elsewhere", 5),
]
"""The last: the oldest manifest of an import, whose parent was not exported."""
FOREIGN = [
    delta(f"theirs/epochs/0000000007/t-00000-{UNIQUE}.parquet"),
    delta(f"origin/epochs/0000000005/t-00000-{UNIQUE}.parquet"),
    delta(f"mine/epochs/0000000006/t-00000-{UNIQUE}.parquet"),
    delta("artifacts/secret.zip"),
    base(f"theirs/bases/t-0000000006-0-1-{UNIQUE}.parquet"),
    base(f"theirs/bases/t-0000000006-0-1-{UNIQUE}.parquet", EpochKey("theirs", 6)),
    base(f"origin/bases/t-0000000006-0-1-{UNIQUE}.parquet"),
    base(f"origin/epochs/0000000005/t-00000-{UNIQUE}.parquet"),
    base(f"trial-x/bases/t-0000000006-0-1-{UNIQUE}.parquet"),
    base("exports/bases/bundle-1-2-3-4.part"),
    loop(f"theirs/loops/0000000005/l-00000-{UNIQUE}.parquet"),
    loop(f"origin/loops/0000000006/l-00000-{UNIQUE}.parquet"),
    queries(f"theirs/queries/0000000004-{UNIQUE}.json"),
    queries(f"origin/manifests/0000000004-1-{UNIQUE}.json"),
    parent("theirs", 6),
    parent("origin", 6),
    parent("mine", 6, f"theirs/manifests/0000000006-1-{UNIQUE}.json"),
    parent("logs", 6),
]


@pytest.mark.parametrize("fields", OWN)
def test_files_of_the_lineage_are_read(store: LineageStore, fields: dict[str, Any]) -> None:
    reference = write_manifest(store, **fields)
    assert store.read_manifest(reference) == store.read_manifest(reference)


@pytest.mark.parametrize("fields", FOREIGN)
def test_files_outside_the_lineage_are_refused_each_time(store: LineageStore, fields: dict[str, Any]) -> None:
    reference = write_manifest(store, **fields)
    for _ in range(2):
        with pytest.raises(ForeignFile, match="not in its lineage"):
            store.read_manifest(reference)


@pytest.mark.parametrize("path", ["../theirs/x", "/etc/passwd", "mine//x"])
def test_paths_outside_the_store_make_a_manifest_invalid(store: LineageStore, path: str) -> None:
    honest = write_manifest(store, **delta(f"mine/epochs/0000000007/t-00000-{UNIQUE}.parquet"))
    forged = store.read(honest.path).replace(f"mine/epochs/0000000007/t-00000-{UNIQUE}.parquet".encode(), path.encode())
    reference = ManifestReference(
        branch="mine", epoch=7, path=f"mine/manifests/0000000007-2-{UNIQUE}.json", sha256=sha256(forged).hexdigest()
    )
    store.write(reference.path, forged)
    with pytest.raises(FileCorrupt, match="is not a valid manifest"):
        store.read_manifest(reference)


def test_the_manifest_of_another_snapshot_is_refused(store: LineageStore) -> None:
    """A process that has read it caches its checksum and contents."""
    theirs = write_manifest(store, "theirs")
    store.read_manifest(theirs)
    for path in (theirs.path, theirs.path.replace("theirs", "mine")):
        claimed = ManifestReference(branch="mine", epoch=7, path=path, sha256=theirs.sha256)
        with pytest.raises(FileCorrupt, match="is the manifest of theirs/7"):
            store.read_manifest(claimed)


def test_planned_branches_are_bounded_by_their_origin(store: LineageStore) -> None:
    origin = parent("origin", 5)
    reference = write_manifest(store, "new", **origin)
    with pytest.raises(ForeignFile, match="is not in the catalog"):
        store.read_manifest(reference)
    assert store.with_branches({"new": EpochKey("mine", 6)}).read_manifest(reference).parent == origin["parent"]
    for at in (EpochKey("origin", 4), EpochKey("theirs", 9), None):
        with pytest.raises(ForeignFile, match="not in its lineage"):
            store.with_branches({"new": at}).read_manifest(reference)
