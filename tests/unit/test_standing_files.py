"""The file of standing queries: snapshots, exports and collection."""

from __future__ import annotations

from pathlib import Path

from epochal.contracts.conditions import Clock, EpochConditions, EpochQueries
from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.bundle_reading import BundleReader
from epochal.snapshots.bundle_writing import named_files
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from tests.kit.manifests import plain_manifest
from tests.spark.formats.make import BUNDLE, MAIN, _write_bundle

PATH = layout.standing_queries(EpochKey("flights-01234567", 7))
QUERIES = EpochQueries(path=PATH, sha256="0" * 64, bytes=10, rows=1, through=3)


def test_a_manifest_names_the_file_of_its_queries() -> None:
    manifest = plain_manifest(7, conditions=EpochConditions(clock=Clock(epoch_time=0), queries=QUERIES))
    again = Manifest.decode(manifest.encode(), "manifest")
    assert again.queries is not None
    assert (again.queries.path, again.queries.rows) == (PATH, 1)
    assert again.queries in again.in_force
    assert again.queries in list(named_files(again))


def test_a_manifest_without_queries_has_no_file_of_queries() -> None:
    manifest = plain_manifest(7, conditions=EpochConditions(clock=Clock(epoch_time=0)))
    assert manifest.queries is None
    assert b"queries" not in manifest.encode()


def test_collection_derives_branch_and_epoch_of_the_file() -> None:
    place = layout.place_of(PATH)
    assert place is not None
    assert (place.branch, place.kind, place.epoch) == ("flights-01234567", "queries", 7)


def test_a_bundle_contains_the_file(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "store"))
    file = store.write_file(layout.standing_queries(EpochKey(MAIN, 7)), b"queries", 1)
    queries = EpochQueries(**file.model_dump(), through=3)
    conditions = EpochConditions(clock=Clock(epoch_time=0), queries=queries)
    manifest = plain_manifest(7, branch=MAIN, conditions=conditions)
    _write_bundle(tmp_path, store, store.write_manifest(manifest))
    (tmp_path / "unpacked").mkdir()
    with BundleReader(tmp_path / BUNDLE, tmp_path / "unpacked") as bundle:
        list(bundle.epochs())
        (found,) = (member for member in bundle.members() if member.kind == "files")
    assert found.paths == (file.path,) and found.file.read_bytes() == b"queries"
