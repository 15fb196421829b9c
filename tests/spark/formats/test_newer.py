"""Every reader refuses files of a later version of Epochal by their format number, and changes nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import epochal
from epochal.backends.heap import HeapBackend
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope
from epochal.engine.position import Position
from epochal.errors import NewerFormat
from epochal.service.domain.failures import of_error, permanent
from epochal.snapshots import row_groups
from epochal.snapshots.discovery import discover
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.references import References
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from tests.unit.snapshot_tree import GROUPS, TOTALS, Branch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGE = r"has format 2; this version of Epochal reads 1: upgrade Epochal\."


@pytest.fixture
def branch(tmp_path: Path) -> Branch:
    branch = Branch(SnapshotStore(str(tmp_path)), tables=(TOTALS,))
    for number in range(3):
        branch.epoch(*((TOTALS, (f"city {place}", number), {"count": number, "worst": None}) for place in range(20)))
        if number == 1:
            branch.compact()
    return branch


def later(store: SnapshotStore, reference: ManifestReference) -> ManifestReference:
    """The manifest as a later version might write it: another format number and unknown fields."""
    fields = json.loads(store.read(reference.path))
    data = json.dumps({**fields, "format": 2, "novelty": {"is": "unknown"}}).encode()
    store.write(reference.path, data)
    return reference.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})


def test_newer_manifest_is_refused_by_every_reader(branch: Branch) -> None:
    store = branch.store
    head = later(store, branch.epochs[-1])
    message = f"Manifest {store.location(head.path)} {MESSAGE}"
    before = store.list("")
    for read in (
        lambda: store.read_manifest(head),
        lambda: SnapshotReader(store, head).read("totals"),
        lambda: Position.recovered(store, "main", 4, head, (TOTALS,)),
        lambda: References(store).needed(head),
        lambda: Verification(store, [head]).run(repair=True),
        lambda: discover(store),
    ):
        with pytest.raises(NewerFormat, match=message):
            read()
    assert store.list("") == before


def test_newer_format_is_a_permanent_failure() -> None:
    assert permanent(of_error(NewerFormat()))


def test_read_state_refuses_a_newer_manifest(spark: SparkSession, branch: Branch) -> None:
    later(branch.store, branch.epochs[-1])
    with pytest.raises(NewerFormat, match=MESSAGE):
        epochal.read_state(spark, branch.store.url, "totals")


@pytest.mark.parametrize("kind", ["bases", "deltas"])
def test_newer_state_file_is_refused_by_every_reader(branch: Branch, tmp_path: Path, kind: str) -> None:
    store = branch.store
    manifest = store.read_manifest(branch.epochs[-1])
    files = [each.model_copy(update={"file": rewritten(store, each.file)}) for each in getattr(manifest, kind)]
    head = store.write_manifest(manifest.model_copy(update={kind: tuple(files)}))
    reader = SnapshotReader(store, head)
    row_groups.forget()
    epoch = EpochScope("flights", EpochKey("main", 4), 1, head.key)
    scope = StateTaskScope(epoch, "totals", 0, 1, GROUPS, (TOTALS,), {"totals": reader.chain("totals")})
    for read in (
        lambda: reader.read("totals"),
        lambda: reader.get("totals", [("nowhere", 5)]),
        lambda: HeapBackend("totals", store, str(tmp_path / "cache")).start(scope),
    ):
        with pytest.raises(NewerFormat, match=rf"State file .*\.parquet {MESSAGE}"):
            read()


def rewritten(store: SnapshotStore, file: FileReference) -> FileReference:
    """The same rows in a file with format number 2."""
    path = store.location(file.path)
    rows = pq.read_table(path)
    about = {**json.loads(rows.schema.metadata[b"epochal"]), "format": 2}
    pq.write_table(rows.replace_schema_metadata({"epochal": json.dumps(about)}), path)
    data = Path(path).read_bytes()
    return FileReference(path=file.path, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data), rows=file.rows)
