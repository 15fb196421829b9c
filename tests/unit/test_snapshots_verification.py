"""Verification reports damaged files and the affected snapshots; repair restores bases and manifests exactly."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import StorageFull
from epochal.snapshots import base_files
from epochal.snapshots import store as store_module
from epochal.snapshots.bundle_writing import named_files
from epochal.snapshots.compaction import compact
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.discovery import discover
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.manifest import BaseFile
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.renaming import Renaming
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Finding, Report, Trouble, Verification
from epochal.testing.state_world import COUNTS, GROUPS, changes_of, counted
from tests.kit.manifests import plain_manifest
from tests.unit.snapshot_tree import TOTALS, Branch


class Line:
    """Epochs 1 to 9 of one branch, with bases at 3, named by 5, and at 6, named by 7."""

    def __init__(self, folder: Path) -> None:
        self.store = SnapshotStore(str(folder))
        self.references: list[ManifestReference] = []
        self.bases: dict[int, tuple[BaseFile, ...]] = {}
        for epoch in range(1, 10):
            named = {5: self.bases.get(3, ()), 7: self.bases.get(6, ())}.get(epoch, ())
            self._epoch(epoch, named)
            if epoch in (3, 6):
                chain = read_chains(self.store, self.references[-1], ["counts"])["counts"]
                self.bases[epoch] = compact(self.store, COUNTS, chain, GROUPS)

    def _epoch(self, epoch: int, bases: tuple[BaseFile, ...]) -> None:
        key = EpochKey("main", epoch)
        rows = changes_of(COUNTS, counted(*range(20), count=epoch))
        self.references.append(
            self.store.write_manifest(
                plain_manifest(
                    epoch,
                    application="test",
                    parent=self.references[-1] if self.references else None,
                    max_parallelism=GROUPS,
                    tables=(COUNTS,),
                    deltas=(write_delta(self.store, sort_changes(COUNTS, rows), key, 0, 1),),
                    bases=bases,
                    source_checkpoints={"in": {}} if bases else {},
                )
            )
        )

    def delta(self, epoch: int) -> str:
        return self.store.read_manifest(self.references[epoch - 1]).deltas[0].file.path

    def base(self, epoch: int) -> str:
        return self.bases[epoch][0].file.path

    def verify(self, *, quick: bool = False, repair: bool = False) -> Report:
        return Verification(self.store, self.references, quick=quick).run(repair=repair)

    def finding(self, **how: bool) -> Finding:
        (found,) = self.verify(**how).findings
        return found

    def damage(self, path: str, at: int | None = None) -> None:
        """Change the byte at ``at``, or the one in the middle."""
        data = bytearray(self.store.read(path))
        data[len(data) // 2 if at is None else at] ^= 0xFF
        self.store.write(path, bytes(data))


@pytest.fixture(params=[base_files.LEAST_CHUNK_BYTES, 0])
def line(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    """Bases whose row groups span several key groups, and bases with one row group for each."""
    monkeypatch.setattr(base_files, "LEAST_CHUNK_BYTES", request.param)
    return Line(tmp_path / "store")


def epochs(finding: Finding) -> list[int]:
    return [key.epoch for key in finding.harms]


def test_an_undamaged_store_has_no_findings(line: Line) -> None:
    line.store.write("main/epochs/0000000001/counts-00000-" + "0" * 32 + ".parquet", b"lost")
    report = line.verify()
    assert (report.findings, report.is_sound, report.snapshots) == ((), True, 9)
    assert report.files == 9 + 9 + len(line.bases[3]) + len(line.bases[6])
    assert [file.path[-15:] for file in report.unreferenced] == ["0000000.parquet"]
    assert report.intact == {"main": EpochKey("main", 9)}


def test_a_damaged_delta_affects_the_snapshots_up_to_the_next_base(line: Line) -> None:
    line.damage(line.delta(4))
    finding = line.finding(repair=True)
    assert (finding.path, finding.trouble, finding.repaired) == (line.delta(4), Trouble.CORRUPT, False)
    assert epochs(finding) == [4, 5, 6]
    assert line.verify().intact == {"main": EpochKey("main", 9)}
    assert line.verify(quick=True).is_sound


def test_a_missing_delta_affects_all_later_snapshots_without_a_base(line: Line) -> None:
    line.store.delete(line.delta(8))
    finding = line.finding(quick=True)
    assert (finding.trouble, epochs(finding)) == (Trouble.MISSING, [8, 9])
    assert line.verify().intact == {"main": EpochKey("main", 7)}


@pytest.mark.parametrize("seed", range(3))
def test_every_run_is_rebuilt_from_those_it_replaced(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    branch = Branch(SnapshotStore(str(tmp_path)))
    for number in range(24):
        keys = [(chance.choice(["JFK", "LA", None]), chance.randrange(40)) for _ in range(chance.randint(1, 12))]
        rows = [{"count": number, "worst": None} if chance.random() < 0.7 else None for _ in keys]
        branch.epoch(*((TOTALS, key, row) for key, row in dict(zip(keys, rows, strict=True)).items()))
        if number % 4 == 2:
            branch.compact()
    named = [run for reference in branch.epochs for run in branch.store.read_manifest(reference).bases]
    runs = {run.file.path: run for run in named if run.table == TOTALS.id}
    assert {run.age for run in runs.values()} >= {0, 1, 2} and any(run.deletes for run in runs.values())
    for path in runs:
        whole = branch.store.read(path)
        branch.store.write(path, whole[:-9])
        report = Verification(branch.store, branch.epochs).run(repair=True)
        assert [(finding.path, finding.repaired) for finding in report.findings] == [(path, True)]
        assert branch.store.read(path) == whole


@pytest.mark.parametrize("missing", [True, False])
def test_a_base_is_rebuilt_from_the_previous_base(line: Line, missing: bool) -> None:
    path = line.base(6)
    whole = line.store.read(path)
    line.store.delete(path) if missing else line.damage(path)
    assert epochs(line.finding()) == [7, 8, 9]
    finding = line.finding(repair=True)
    assert finding.repaired
    assert line.store.read(path) == whole
    assert line.verify().is_sound
    assert SnapshotReader(line.store, line.references[-1]).read("counts").num_rows == 20


def test_findings_name_the_damaged_key_groups(line: Line) -> None:
    base = line.bases[6][0]
    line.damage(base.file.path, at=40)
    where = "" if base.index is None else f"; damaged key groups: {base.first_group}"
    assert line.finding().detail == f"the checksum differs from its manifest{where}"


def test_a_base_is_not_rebuilt_from_a_damaged_delta(line: Line) -> None:
    line.damage(line.base(6))
    line.damage(line.delta(6))
    found = {finding.path: finding.repaired for finding in line.verify(repair=True).findings}
    assert found == {line.base(6): False, line.delta(6): False}


def test_bases_are_repaired_in_order(line: Line) -> None:
    line.store.delete(line.base(3))
    line.store.delete(line.base(6))
    report = line.verify(repair=True)
    assert report.is_sound
    assert len(report.findings) == 2
    assert line.verify().findings == ()


def test_a_manifest_is_restored_while_it_is_cached(line: Line) -> None:
    path = line.references[7].path
    line.damage(path)
    assert epochs(line.finding()) == [8, 9]
    assert line.finding(repair=True).repaired
    assert line.verify().is_sound
    line.store.delete(path)
    store_module._manifests.clear()
    finding = line.finding(repair=True)
    assert (finding.trouble, finding.repaired) == (Trouble.MISSING, False)


def test_a_full_store_ends_a_repair_without_changes(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.store.delete(line.base(6))
    before = line.store.list("")

    def full(store: SnapshotStore, path: str, data: object) -> None:
        raise StorageFull(f"There is no space left for {path}.")

    monkeypatch.setattr(SnapshotStore, "write", full)
    with pytest.raises(StorageFull):
        line.verify(repair=True)
    assert line.store.list("") == before


def test_snapshots_are_discovered_from_manifests_without_a_catalog(line: Line) -> None:
    line.store.write_manifest(line.store.read_manifest(line.references[-1]).model_copy(update={"attempt": 2}))
    for reference in line.references[:2]:
        line.store.delete(reference.path)
    found = discover(line.store)
    assert sorted(reference.epoch for reference in found.roots) == [5, 6, 7, 8, 9]
    assert (found.cut_off, found.unreadable) == (10 - 2 - 5, ())
    assert Verification(line.store, found.roots).run().is_sound


def test_unreadable_manifests_are_found_without_a_catalog(line: Line) -> None:
    line.store.write(line.references[4].path, b"{}")
    found = discover(line.store)
    assert found.unreadable == (line.references[4].path,)
    assert sorted(reference.epoch for reference in found.roots) == [1, 2, 3, 7, 8, 9]


def test_a_base_of_a_renamed_branch_is_rebuilt(line: Line) -> None:
    """The file contains the name of the branch that wrote it, which the manifests record."""
    for name in ("ads.main-00000001", "main-00000002"):
        copied_to(line, name)
    path = line.base(6)
    assert path.startswith("main-00000002/bases/")
    whole = line.store.read(path)
    line.damage(path)
    assert line.finding(repair=True).repaired
    assert line.store.read(path) == whole
    assert line.verify().is_sound
    assert SnapshotReader(line.store, line.references[-1]).read("counts").num_rows == 20


def copied_to(line: Line, branch: str) -> None:
    """Copy the manifests to ``branch`` and continue with these."""
    renaming = Renaming(lambda _: branch, lambda name: name, control_plane="there", snapshot="0" * 64)
    before: ManifestReference | None = None
    for number, reference in enumerate(line.references):
        manifest = line.store.read_manifest(reference)
        for file in named_files(manifest):
            line.store.write(renaming.path(file.path), line.store.read(file.path))
        now = renaming.manifest(manifest, reference.sha256, before)
        before = now.reference(renaming.path(reference.path))
        line.store.write(before.path, now.encode())
        line.references[number] = before
        if now.bases:
            line.bases[now.bases[0].at.epoch] = now.bases
