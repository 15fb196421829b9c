"""The file of standing queries: snapshots need it, exports take it along, collection knows whose it is."""

from __future__ import annotations

from epochal.contracts.conditions import Clock, EpochConditions, EpochQueries
from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.bundle_writing import named_files
from epochal.snapshots.manifest import Manifest
from tests.manifests import plain_manifest

PATH = layout.standing_queries(EpochKey("flights-01234567", 7))
QUERIES = EpochQueries(path=PATH, sha256="0" * 64, bytes=10, rows=1, through=3)


def test_a_manifest_names_the_file_of_its_queries() -> None:
    manifest = plain_manifest(7, conditions=EpochConditions(clock=Clock(epoch_time=0), queries=QUERIES))
    again = Manifest.decode(manifest.encode(), "manifest")
    assert again.queries is not None
    assert (again.queries.path, again.queries.rows) == (PATH, 1)
    assert again.queries in again.in_force
    assert again.queries in list(named_files(again))


def test_a_manifest_without_queries_is_written_as_before_there_were_any() -> None:
    manifest = plain_manifest(7, conditions=EpochConditions(clock=Clock(epoch_time=0)))
    assert manifest.queries is None
    assert b"queries" not in manifest.encode()


def test_collection_knows_the_branch_and_the_epoch_of_the_file() -> None:
    place = layout.place_of(PATH)
    assert place is not None
    assert (place.branch, place.kind, place.epoch) == ("flights-01234567", "queries", 7)
