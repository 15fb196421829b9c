"""Packs in bundles: which packs a bundle contains, and the checks of a reader that does not trust it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import Clock, EpochConditions, EpochQueries
from epochal.contracts.identity import EpochKey
from epochal.snapshots import layout
from epochal.snapshots.bundle_format import BundleError
from epochal.snapshots.bundle_reading import BundleLimits, BundleReader, Member
from epochal.snapshots.bundle_writing import files_of
from epochal.snapshots.manifest import FileInFlight, FileReference, Manifest, RecordsInFlight
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column
from tests.kit.manifests import plain_manifest
from tests.kit.packed_files import EpochFiles
from tests.service.bundles import members, packed
from tests.spark.formats.make import BUNDLE, MAIN, _write_bundle

Parts = list[tuple[tarfile.TarInfo, bytes]]
OTHER = "other-00000002"


@dataclass
class Lineage:
    """Epochs of a branch without state tables. Standing queries and records in flight are named again until replaced.
    Each epoch has the sources' positions, so that a snapshot needs only its own manifest."""

    store: SnapshotStore
    head: ManifestReference | None = None
    queries: EpochQueries | None = None
    loops: dict[str, RecordsInFlight] = field(default_factory=dict)

    def epoch(
        self, small: bool = True, queries: bytes | None = None, records: bytes | None = None, positions: bool = True
    ) -> ManifestReference:
        number = 1 if self.head is None else self.head.epoch + 1
        key, files = EpochKey(MAIN, number), EpochFiles(self.store, lambda: small)
        if queries is not None:
            written = files.write_file(layout.standing_queries(key), queries, 1)
            self.queries = EpochQueries(**written.model_dump(), through=number)
        if records is not None:
            part = FileInFlight(
                file=files.write_file(layout.records_of_loop(key, "again", 0), records, 3), first=0, last=3
            )
            self.loops = {"again": RecordsInFlight(columns=(Column(name="n", type="int"),), files=(part,))}
        conditions = EpochConditions(clock=Clock(epoch_time=0), queries=self.queries)
        self.head = files.write_manifest(
            plain_manifest(
                number,
                branch=MAIN,
                parent=self.head,
                loops=self.loops,
                conditions=conditions,
                source_checkpoints={"in": {}} if positions else {},
            )
        )
        manifest = self.store.read_manifest(self.head)
        self.loops, self.queries = dict(manifest.loops), manifest.conditions.queries
        return self.head


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return Lineage(SnapshotStore(str(tmp_path / "store")))


def written(lineage: Lineage, folder: Path, since: ManifestReference | None = None) -> Parts:
    assert lineage.head is not None
    _write_bundle(folder, lineage.store, lineage.head, since)
    return members((folder / BUNDLE).read_bytes())


def read(parts: Parts, folder: Path) -> list[Member]:
    bundle, unpacked = folder / "altered", folder / "unpacked"
    bundle.write_bytes(packed(parts))
    unpacked.mkdir(exist_ok=True)
    with BundleReader(bundle, unpacked) as reader:
        list(reader.epochs())
        return list(reader.members())


def packs_of(parts: Parts) -> dict[str, str]:
    found: dict[str, str] = json.loads(parts[0][1])["packs"]
    return found


def test_a_pack_of_an_older_epoch_is_in_the_bundle(lineage: Lineage, tmp_path: Path) -> None:
    """Its manifest is no member, and is written with the pack: the file at a path is the same in every store."""
    first = lineage.epoch(queries=b"queries", records=b"records")
    lineage.epoch(records=b"later records")
    last = lineage.epoch(small=False, records=b"own file")
    parts = written(lineage, tmp_path)
    assert list(packs_of(parts)) == [first.path], "the pack of the second epoch is not needed"
    found = {member.kind: member for member in read(parts, tmp_path)}
    pack = found["packs"]
    assert pack.paths == (first.path,) and pack.file.read_bytes() == lineage.store.read(first.path)
    assert pack.file.read_bytes().startswith(b"queriesrecords{")
    assert found["manifests"].paths == (last.path,)
    assert found["files"].file.read_bytes() == b"own file"


def test_a_manifest_in_a_pack_is_a_member_and_is_written_with_its_pack(lineage: Lineage, tmp_path: Path) -> None:
    last = lineage.epoch(queries=b"queries")
    found = {member.kind: member for member in read(written(lineage, tmp_path), tmp_path)}
    manifest = found["manifests"]
    assert manifest.manifest == last and manifest.paths == ()
    assert hashlib.sha256(manifest.file.read_bytes()).hexdigest() == last.sha256
    assert found["packs"].paths == (last.path,)
    assert "files" not in found


def test_an_increment_leaves_out_packs_of_which_its_beginning_needs_the_same_files(
    lineage: Lineage, tmp_path: Path
) -> None:
    since = lineage.epoch(queries=b"queries", records=b"records", positions=False)
    middle = lineage.epoch(records=b"later", positions=False)
    last = lineage.epoch(small=False, positions=False)
    assert list(packs_of(written(lineage, tmp_path, since))) == [middle.path]
    assert packs_of(written(lineage, tmp_path, last)) == {}
    assert set(packs_of(written(lineage, tmp_path))) == {since.path, middle.path}


def test_packs_with_equal_content_are_one_member(lineage: Lineage, tmp_path: Path) -> None:
    one, two = (f"{MAIN}/manifests/{number:010}-1-{'0' * 32}-0000000007.pack" for number in (1, 2))
    lineage.store.write(one, b"queries")
    lineage.store.write(two, b"records")
    lineage.store.write(one.replace("0" * 32, "1" * 32), b"queries")

    def inside(path: str, pack: str, data: bytes) -> FileReference:
        place = {"path": pack, "offset": 0}
        sha256 = hashlib.sha256(data).hexdigest()
        return FileReference.model_validate({"path": path, "sha256": sha256, "bytes": 7, "rows": 1, "within": place})

    queries = inside(layout.standing_queries(EpochKey(MAIN, 1)), one, b"queries")
    same = inside(layout.records_of_loop(EpochKey(MAIN, 1), "again", 0), one.replace("0" * 32, "1" * 32), b"queries")
    lineage.queries = EpochQueries(**queries.model_dump(), through=1)
    part = FileInFlight(file=same, first=0, last=1)
    lineage.loops = {"again": RecordsInFlight(columns=(Column(name="n", type="int"),), files=(part,))}
    lineage.epoch(small=False)
    (pack,) = (member for member in read(written(lineage, tmp_path), tmp_path) if member.kind == "packs")
    assert set(pack.paths) == {one, one.replace("0" * 32, "1" * 32)} and pack.file.read_bytes() == b"queries"


def test_the_size_in_the_header_is_that_of_the_members(lineage: Lineage, tmp_path: Path) -> None:
    lineage.epoch(queries=b"queries")
    lineage.epoch(small=False, records=b"records")
    parts = written(lineage, tmp_path)
    counted = [data for about, data in parts if "/" in about.name]
    header = json.loads(parts[0][1])
    assert (header["bytes"], header["members"]) == (sum(map(len, counted)), len(counted))


# Altered bundles, whose checksums are all correct.


def resealed(parts: Parts, header: dict[str, Any]) -> Parts:
    """``parts`` with another header, and an end that matches it."""
    about = json.dumps({**header, "members": len(parts) - 3}).encode()
    end = {"header_sha256": hashlib.sha256(about).hexdigest(), "members": len(parts) - 3}
    return [(parts[0][0], about), *parts[1:-1], (parts[-1][0], json.dumps(end).encode())]


def with_manifest(parts: Parts, change: Callable[[dict[str, Any]], None]) -> Parts:
    """Change the only manifest, also at the end of its pack, with all checksums."""
    header, altered = json.loads(parts[0][1]), list(parts)
    (at,) = (number for number, (about, _) in enumerate(parts) if about.name.startswith("manifests/"))
    was = parts[at][1]
    document = json.loads(was)
    change(document)
    data = Manifest.model_validate(document).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    header["snapshot"]["sha256"] = sha256
    altered[at] = (tarfile.TarInfo(f"manifests/{sha256}"), data)
    for number, (about, content) in enumerate(parts):
        if about.name.startswith("packs/") and content.endswith(was):
            altered[number] = renamed_pack(header, about.name, content.removesuffix(was) + data)
    return resealed(altered, header)


def renamed_pack(header: dict[str, Any], name: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    before, after = name.rpartition("/")[2], hashlib.sha256(content).hexdigest()
    header["packs"] = {path: after if sha256 == before else sha256 for path, sha256 in header["packs"].items()}
    return tarfile.TarInfo(f"packs/{after}"), content


@pytest.fixture
def parts(lineage: Lineage, tmp_path: Path) -> Parts:
    """A bundle with a pack of an older epoch, with two files, and one with its manifest."""
    lineage.epoch(queries=b"queries", records=b"records")
    lineage.epoch(records=b"later")
    found = written(lineage, tmp_path)
    assert [about.name.partition("/")[0] for about, _ in found].count("packs") == 2
    return found


def the_queries(document: dict[str, Any]) -> dict[str, Any]:
    return dict(document["conditions"]["queries"])


@pytest.mark.parametrize(
    "change",
    [
        {"within": {"offset": 8}},
        {"within": {"offset": 1 << 40}},
        {"within": {"offset": -1}},
        {"within": {"offset": 1}},
        {"bytes": 15},
        {"bytes": -1},
        {"bytes": 6},
        {"sha256": "0" * 64},
        {"within": {"path": f"{OTHER}/manifests/0000000001-1-{'0' * 32}-0000000014.pack"}},
        {"within": {"path": f"{MAIN}/manifests/0000000001-1-{'0' * 32}.json"}},
        {"within": {"path": f"{MAIN}/bases/0000000001-1-{'0' * 32}-0000000014.pack"}},
        {"within": {"path": f"{MAIN}/manifests/x/0000000001-1-{'0' * 32}-0000000014.pack"}},
        {"within": {"path": f"{MAIN}/manifests/x-0000000014.pack"}},
    ],
    ids=str,
)
def test_a_file_outside_its_pack_is_refused(parts: Parts, tmp_path: Path, change: dict[str, Any]) -> None:
    def alter(document: dict[str, Any]) -> None:
        queries = the_queries(document)
        within = {**queries["within"], **change.get("within", {})}
        document["conditions"]["queries"] = {**queries, **change, "within": within}

    assert read(with_manifest(parts, lambda document: None), tmp_path), "a changed bundle can be read"
    with pytest.raises(BundleError):
        read(with_manifest(parts, alter), tmp_path)


def test_a_pack_that_no_manifest_names_is_refused(parts: Parts, tmp_path: Path) -> None:
    header, more = json.loads(parts[0][1]), b"more"
    sha256 = hashlib.sha256(more).hexdigest()
    member = (tarfile.TarInfo(f"packs/{sha256}"), more)
    path = f"{MAIN}/manifests/0000000001-1-{'0' * 32}-0000000004.pack"
    for named in ({}, {path: sha256}):
        altered = resealed([*parts[:-1], member, parts[-1]], {**header, "packs": {**header["packs"], **named}})
        with pytest.raises(BundleError, match="No manifest or version"):
            read(altered, tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        f"{OTHER}/manifests/0000000001-1-{'0' * 32}-0000000004.pack",
        f"{MAIN}/manifests/0000000001-1-{'0' * 32}-0000000000.pack",
        f"{MAIN}/manifests/0000000001-1-{'0' * 32}.json",
        f"{MAIN}/manifests/.0000000001-1-{'0' * 32}-0000000004.pack.01234567.tmp",
        f"{MAIN}/epochs/0000000001-1-{'0' * 32}-0000000004.pack",
        f"../manifests/0000000001-1-{'0' * 32}-0000000004.pack",
    ],
)
def test_paths_that_are_not_packs_of_the_branches_are_refused(parts: Parts, tmp_path: Path, path: str) -> None:
    header = json.loads(parts[0][1])
    with pytest.raises(BundleError):
        read(resealed(parts, {**header, "packs": {**header["packs"], path: "0" * 64}}), tmp_path)


def test_a_bundle_without_one_of_its_packs_is_refused(parts: Parts, tmp_path: Path) -> None:
    header = json.loads(parts[0][1])
    for at, (about, _) in enumerate(parts):
        if about.name.startswith("packs/"):
            with pytest.raises(BundleError, match="names packs that it does not contain"):
                read(resealed(parts[:at] + parts[at + 1 :], header), tmp_path)
    assert header["snapshot"]["path"] in header["packs"]
    alone = {path: sha256 for path, sha256 in header["packs"].items() if path != header["snapshot"]["path"]}
    without = [part for part in parts if part[0].name != f"packs/{header['packs'][header['snapshot']['path']]}"]
    with pytest.raises(BundleError, match="lacks the pack of manifest"):
        read(resealed(without, {**header, "packs": alone}), tmp_path)


def test_packs_precede_no_manifest(parts: Parts, tmp_path: Path) -> None:
    """A reader checks a pack with all manifests that name it."""
    kind = {about.name.partition("/")[0]: number for number, (about, _) in enumerate(parts)}
    moved = list(parts)
    moved.insert(kind["packs"], moved.pop(kind["manifests"]))
    with pytest.raises(BundleError):
        read(resealed(moved, json.loads(parts[0][1])), tmp_path)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("ending", ["", "junk", "another"])
def test_a_pack_ends_with_a_manifest_of_its_epoch(parts: Parts, tmp_path: Path, own: bool, ending: str) -> None:
    """An older pack may end without one."""
    header, altered = json.loads(parts[0][1]), list(parts)
    data = plain_manifest(1, branch=OTHER).encode() if ending == "another" else ending.encode()
    for at, (about, content) in enumerate(parts):
        if about.name.startswith("packs/") and content.startswith(b"later" if own else b"queries"):
            altered[at] = renamed_pack(header, about.name, content[: content.index(b"{")] + data)
    altered = resealed(altered, header)
    if own or ending:
        with pytest.raises(BundleError):
            read(altered, tmp_path)
    else:
        assert read(altered, tmp_path)


def test_a_pack_shorter_than_its_name_says_is_refused(parts: Parts, tmp_path: Path) -> None:
    header, altered = json.loads(parts[0][1]), list(parts)
    for at, (about, content) in enumerate(parts):
        if about.name.startswith("packs/") and content.startswith(b"queries"):
            altered[at] = renamed_pack(header, about.name, b"queries")
    with pytest.raises(BundleError):
        read(resealed(altered, header), tmp_path)


def test_files_of_a_bundle_lists_no_packed_file_as_a_file_of_its_own(lineage: Lineage) -> None:
    lineage.epoch(queries=b"queries")
    last = lineage.epoch(small=False, records=b"records")
    found = files_of(lineage.store, last, None)
    assert [file.sha256 for file in found.files] == [hashlib.sha256(b"records").hexdigest()]
    assert len(found.packs) == 1 and found.members == 3


def test_a_pack_larger_than_the_maximum_is_refused(parts: Parts, tmp_path: Path) -> None:
    (tmp_path / "altered").write_bytes(packed(parts))
    (tmp_path / "unpacked").mkdir()
    largest = max(len(data) for about, data in parts if about.name.startswith("packs/"))
    limits = BundleLimits(file=largest - 1)
    with BundleReader(tmp_path / "altered", tmp_path / "unpacked", limits) as reader:
        list(reader.epochs())
        with pytest.raises(BundleError, match=f"packs/.*the maximum is {largest - 1}"):
            list(reader.members())
