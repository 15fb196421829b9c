"""Copies of snapshots under new branch names: every reference to a branch is renamed, and nothing else changes."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epochal.contracts.catalog import Change, ManifestReference
from epochal.contracts.conditions import Clock, EpochConditions, EpochQueries
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, PackPlace
from epochal.service.domain.identifiers import copied_branch_id, new_branch_id
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import BundleBranch, BundleEpoch
from epochal.snapshots.manifest import (
    BaseFile,
    DeltaFile,
    FileInFlight,
    FileReference,
    Manifest,
    RecordsInFlight,
    SinkHandles,
)
from epochal.snapshots.renaming import Renaming, copied, written_by
from epochal.state.table import Column
from epochal.wire.projects import LONGEST_FULL_NAME, full_name, is_full_name, local_name, project_of
from tests.kit.manifests import plain_manifest

OLD, BEFORE = "pricing.orders-1a2b3c4d", "pricing.orders-00000000"
KEY, PARENT = EpochKey(OLD, 8), EpochKey(OLD, 7)


def new_name(branch: str) -> str:
    return copied_branch_id(branch, "ads", control_plane="there", snapshot="5" * 64)


def new_application(name: str) -> str:
    return full_name("ads", local_name(name))


RENAMING = Renaming(new_name, new_application, "there", "5" * 64)


PACK = layout.pack(KEY, 1, 40)


def file(path: str, within: PackPlace | None = None) -> FileReference:
    return FileReference(path=path, sha256="1" * 64, bytes=10, rows=3, within=within)


def packed(path: str, offset: int, pack: str = PACK) -> FileReference:
    return file(path, PackPlace(pack, offset))


def handle(path: str) -> Handle:
    segments = [file(path).model_dump(mode="json"), packed(path, 20).model_dump(mode="json")]
    payload = {"segments": segments, "note": f"{OLD} is a note and not a path"}
    return Handle(owner="out", subtask=0, rows=3, bytes=10, payload=payload)


def full_manifest(**fields: Any) -> Manifest:
    """A manifest in which every field that can name a branch does."""
    before = PackPlace(layout.pack(PARENT, 1, 10), 9)
    queries = EpochQueries(
        path=layout.standing_queries(PARENT), sha256="0" * 64, bytes=1, rows=1, through=3, within=before
    )
    records = FileInFlight(file=packed(layout.records_of_loop(KEY, "again", 0), 10), first=0, last=3)
    base = BaseFile(
        table="counts", at=PARENT, first_group=0, last_group=7, file=file(layout.base(PARENT, "counts", range(8)))
    )
    usual: dict[str, Any] = {
        "application": "pricing.orders",
        "branch": OLD,
        "parent": ManifestReference(branch=OLD, epoch=7, path=layout.manifest(PARENT, 1), sha256="2" * 64),
        "deltas": (
            DeltaFile(table="counts", subtask=0, parallelism=2, file=file(layout.delta(KEY, "counts", 0))),
            DeltaFile(table="counts", subtask=1, parallelism=2, file=packed(layout.delta(KEY, "counts", 1), 0)),
        ),
        "bases": (base,),
        "sinks": {"out": SinkHandles(kind="dbms", target="t", handles=(handle(layout.log_segment(KEY, 1, "out", 0)),))},
        "loops": {"again": RecordsInFlight(columns=(Column(name="n", type="int"),), files=(records,))},
        "changes": (Change(kind="fork", detail={"branch": BEFORE, "epoch": 3}), Change(kind="start")),
        "conditions": EpochConditions(clock=Clock(epoch_time=0), queries=queries),
        "extras": {"cached": {}},
    }
    return plain_manifest(8, **{**usual, **fields})


def test_every_reference_to_a_branch_in_a_manifest_is_renamed() -> None:
    was = full_manifest()
    now = RENAMING.manifest(was, "3" * 64, None)
    encoded = now.encode().decode()
    found = copied(now)
    assert found is not None and found.model_dump() == {
        "control_plane": "there",
        "sha256": "3" * 64,
        "snapshot": "5" * 64,
        "written_by": OLD,
    }
    others = encoded.replace(json.dumps(found.model_dump(), sort_keys=True, separators=(",", ":")), "")
    assert re.findall("pricing[^ ]*", others) == [OLD], "notes of a sink are not renamed"
    assert now.application == "ads.orders"
    assert (now.key, now.bases[0].at) == (EpochKey(new_name(OLD), 8), EpochKey(new_name(OLD), 7))
    assert now.queries is not None and now.queries.path.startswith(f"{new_name(OLD)}/queries/")
    assert now.changes[0].detail == {"branch": new_name(BEFORE), "epoch": 3}
    segment = now.sinks["out"].handles[0].payload["segments"][0]["path"]
    assert segment.startswith(f"{new_name(OLD)}/logs/out/")
    assert now.deltas[1].file.within == PackPlace(RENAMING.path(PACK), 0), "the place in a pack is the same"
    back = {new_name(OLD): OLD, new_name(BEFORE): BEFORE}
    again = Renaming(lambda name: back[name], lambda name: "pricing.orders", "there", "5" * 64).manifest(now, "", None)
    left = {"extras", "parent"}
    assert again.model_dump(exclude=left) == was.model_dump(exclude=left), "nothing else has changed"
    assert Manifest.decode(now.encode(), "manifest") == now


def test_a_parent_that_was_not_copied_has_a_unique_checksum() -> None:
    """A store caches manifests by checksum and would return the manifest of the other project."""
    was = full_manifest()
    now = RENAMING.manifest(was, "3" * 64, None)
    assert was.parent is not None and now.parent is not None
    assert now.parent.key == RENAMING.key(was.parent.key)
    assert now.parent.path == RENAMING.path(was.parent.path)
    assert now.parent.sha256 != was.parent.sha256
    here = ManifestReference(branch="ads.x", epoch=7, path="ads.x/manifests/7", sha256="9" * 64)
    assert RENAMING.manifest(was, "3" * 64, here).parent == here
    assert RENAMING.manifest(full_manifest(parent=None), "3" * 64, None).parent is None


def test_a_manifest_in_a_pack_becomes_a_file_of_its_own() -> None:
    moved = RENAMING.manifest_path(PACK)
    place = layout.place_of(moved)
    assert place is not None and (place.kind, place.branch, place.epoch) == ("manifest", new_name(OLD), 8)
    assert layout.manifest_offset(moved) == 0 and moved == RENAMING.manifest_path(PACK), "repeated imports are equal"
    assert RENAMING.manifest_path(plain := layout.manifest(KEY, 1)) == RENAMING.path(plain)
    parent = ManifestReference(branch=OLD, epoch=7, path=layout.pack(PARENT, 1, 5), sha256="2" * 64)
    now = RENAMING.manifest(full_manifest(parent=parent), "3" * 64, None)
    assert now.parent is not None and now.parent.path == RENAMING.manifest_path(parent.path)


def test_copies_of_copies_record_the_branch_that_wrote_the_files() -> None:
    once = RENAMING.manifest(full_manifest(), "3" * 64, None)
    twice = RENAMING.manifest(once, "4" * 64, None)
    assert written_by(full_manifest()) == written_by(once) == written_by(twice) == OLD
    assert (found := copied(twice)) is not None and found.sha256 == "4" * 64


def test_epochs_and_branches_of_a_bundle_are_renamed() -> None:
    moment = datetime.now(UTC)
    origin = {"origin": {"application": "pricing.orders", "branch": BEFORE}, "branch": BEFORE}
    epoch = BundleEpoch(
        branch=OLD,
        epoch=8,
        attempt=1,
        parent=PARENT,
        version=1,
        changes=(Change(kind="import", detail=origin),),
        started_at=moment,
        prepared_at=moment,
        committed_at=moment,
    )
    now = RENAMING.epoch(epoch)
    assert (now.key, now.parent) == (EpochKey(new_name(OLD), 8), EpochKey(new_name(OLD), 7))
    detail = now.changes[0].detail
    assert (detail["branch"], detail["origin"]) == (new_name(BEFORE), origin["origin"]), "the origin is not renamed"
    branch = BundleBranch(
        id=OLD, application="1", kind="fork", parent=None, message=None, created_at=moment, created_by="me"
    )
    assert RENAMING._branch(branch).model_dump(exclude={"id"}) == branch.model_dump(exclude={"id"})


names = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
projects = st.from_regex(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True)


@given(names, projects, projects)
def test_new_branch_names_are_valid_and_belong_to_the_project(name: str, source: str, target: str) -> None:
    old = new_branch_id(full_name(source, name)[: LONGEST_FULL_NAME + 1].rstrip("-"))
    new = copied_branch_id(old, target, control_plane="there", snapshot="5" * 64)
    application, _, digits = new.rpartition("-")
    assert project_of(new) == target and is_full_name(application)
    assert re.fullmatch("[0-9a-f]{8}", digits) and len(application) <= LONGEST_FULL_NAME
    assert not layout.is_scratch(new) and new not in layout.OF_THE_CATALOG
    assert new == copied_branch_id(old, target, control_plane="there", snapshot="5" * 64)
    others = [
        copied_branch_id(old, target, control_plane="elsewhere", snapshot="5" * 64),
        copied_branch_id(old, target, control_plane="there", snapshot="6" * 64),
        copied_branch_id(new, target, control_plane="there", snapshot="5" * 64),
    ]
    assert len({new, old, *others}) == 5
