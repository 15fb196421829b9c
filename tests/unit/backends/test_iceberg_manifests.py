"""The Iceberg sink merges small manifests: every reader finds the same files as without, also beside other writers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from epochal.backends.iceberg.append import MergeLimits, small_manifests, staged_append
from epochal.backends.iceberg.sink import IcebergSink
from epochal.connectors.iceberg_snapshots import IcebergSnapshots
from epochal.errors import OutcomeUnknown
from epochal.faults import FaultPoint, injected
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.iceberg_tables import IcebergCatalog, add_position_delete, sqlite_catalog

COUNT = "commit.manifest.min-count-to-merge"
ENABLED = "commit.manifest-merge.enabled"


class Crash(BaseException):
    """Simulated death of the process."""


class Merging:
    """A table in which three manifests of one size are merged, and a sink that writes one row in each epoch."""

    def __init__(self, folder: Path, version: int = 2, partition_by: list[str] | None = None, **options: str) -> None:
        self.orders: IcebergCatalog = sqlite_catalog(folder, partition_by=partition_by or [])
        if partition_by:
            self.sink = self.started()
            with self.table.transaction() as transaction:
                transaction.set_properties({COUNT: "3", **options})
        else:
            properties = {COUNT: "3", "format-version": str(version), **options}
            self.orders.catalog.create_table(self.orders.address.table, SCHEMA, properties=properties)
            self.sink = self.started()
        self.decided = DecidedEpochs()
        self.last = 0

    def started(self, at: int = 0, attempt: int = 1) -> IcebergSink:
        sink = self.orders.make()
        sink.check(SCHEMA)
        sink.recover(epoch(at, attempt))
        return sink

    def commit(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            self.last += 1
            self.decided.commit(self.sink, epoch(self.last), [pre_commit(self.sink, epoch(self.last), rows(self.last))])

    @property
    def table(self) -> Table:
        table = self.orders.table()
        assert table is not None
        return table

    @property
    def manifests(self) -> list[ManifestFile]:
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return snapshot.manifests(self.table.io)

    def entries(self, manifests: list[ManifestFile]) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(self.table.io):
                yield manifest, entry

    def added(self) -> dict[str, tuple[Any, ...]]:
        """Each file as the snapshot that added it has it."""
        return {
            entry.data_file.file_path: _described(entry)
            for snapshot in self.table.snapshots()
            for manifest, entry in self.entries(snapshot.manifests(self.table.io))
            if entry.status == ManifestEntryStatus.ADDED and manifest.added_snapshot_id == snapshot.snapshot_id
        }


def _described(entry: ManifestEntry) -> tuple[Any, ...]:
    file = entry.data_file
    numbers = (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
    counts = (file.record_count, file.file_size_in_bytes, file.value_counts, file.null_value_counts, file.column_sizes)
    bounds = (file.lower_bounds, file.upper_bounds, file.split_offsets, file.sort_order_id, file.file_format)
    return (*numbers, file.spec_id, repr(file.partition), *counts, *bounds)


@pytest.mark.parametrize(
    ("version", "partition_by"), [(2, []), (1, []), (2, ["name"]), (2, ["bucket(4, id)", "truncate(2, name)"])]
)
def test_merged_manifests_have_the_same_entries(tmp_path: Path, version: int, partition_by: list[str]) -> None:
    merging = Merging(tmp_path, version, partition_by)
    merging.commit(30)
    assert len(merging.manifests) <= 2 + 2 + 2 + 2
    assert same(merging.orders.visible(), rows(*range(1, 31)))
    present = {entry.data_file.file_path: _described(entry) for _, entry in merging.entries(merging.manifests)}
    assert present == merging.added()
    assert len(present) == 30
    for manifest, entry in merging.entries(merging.manifests):
        is_new = manifest.added_snapshot_id == entry.snapshot_id
        assert (entry.status == ManifestEntryStatus.ADDED) == is_new


def test_a_table_that_was_upgraded(tmp_path: Path) -> None:
    """Entries of version 1 have no sequence numbers."""
    merging = Merging(tmp_path, version=1)
    merging.commit(4)
    with merging.table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    merging.sink = merging.started(4, attempt=2)
    merging.commit(8)
    assert len(merging.manifests) <= 2 + 2 + 2
    numbers = {entry.data_file.file_path: entry.sequence_number for _, entry in merging.entries(merging.manifests)}
    assert sorted(number or 0 for number in numbers.values()) == [0, 0, 0, 0, *range(1, 9)]
    assert same(merging.orders.visible(), rows(*range(1, 13)))


def test_staging_neither_changes_nor_copies_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's transactions copy all snapshots at each access."""
    merging = Merging(tmp_path)
    merging.commit(3)
    table = merging.table
    before = table.metadata.model_dump_json()
    (file,) = (entry.data_file for _, entry in merging.entries(merging.manifests[:1]))

    def copied(*_: Any, **__: Any) -> None:
        raise AssertionError("the metadata is copied")

    monkeypatch.setattr("pyiceberg.table.update_table_metadata", copied)
    append = staged_append(table, [file], {"epochal.epochs": "4"}, merge=True)
    assert not append.merge_failed
    assert table.metadata.model_dump_json() == before
    (snapshot, _) = append.updates
    assert snapshot.snapshot.summary["total-records"] == "4"
    assert snapshot.snapshot.summary["epochal.epochs"] == "4"
    assert len(snapshot.snapshot.manifests(table.io)) == 2


def test_statistics_and_partitions_of_merged_files_are_read(tmp_path: Path) -> None:
    merging = Merging(tmp_path, partition_by=["bucket(4, id)"])
    merging.commit(9)
    for number in range(1, 10):
        assert same(merging.table.scan(f"id == {number}").to_arrow().to_pylist(), rows(number))


def test_the_source_reads_each_row_once_from_every_position(tmp_path: Path) -> None:
    merging = Merging(tmp_path)
    merging.commit(12)
    source = IcebergSnapshots(merging.orders.address)
    latest = source.latest()
    assert latest == 12
    files = [file.path for version in source.after(0) for file in version.files]
    assert len(set(files)) == len(files) == 12
    for position in range(1, 13):
        assert [file.path for version in source.after(position) for file in version.files] == files[position:]
        assert [file.path for file in source.added_by(position).files] == [files[position - 1]]
        assert {file.path for file in source.whole(position).files} == set(files[:position])


def test_the_properties_of_the_table_decide(tmp_path: Path) -> None:
    merging = Merging(tmp_path, **{ENABLED: "false"})
    before = merging.table.properties
    merging.commit(7)
    assert len(merging.manifests) == 7
    assert merging.table.properties == {**before, "epochal.epoch.main.out": "7"}


@pytest.mark.parametrize("lands", [True, False])
def test_a_crash_between_the_merge_and_the_answer_to_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    merging = Merging(tmp_path)
    merging.commit(3)
    catalog, written = merging.orders.catalog, []
    commit = catalog.commit_table

    def die(*arguments: Any) -> Any:
        written.append(_files_of_metadata(tmp_path))
        if lands:
            commit(*arguments)
        raise Crash

    before = _files_of_metadata(tmp_path)
    handle = pre_commit(merging.sink, epoch(4), rows(4))
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", die)
        with pytest.raises(Crash):
            merging.decided.commit(merging.sink, epoch(4), [handle])
    assert len(written[0] - before) == 3  # the new manifest, the merged one, and the list
    successor = merging.started(3 + lands, attempt=2)
    merging.decided.commit(successor, epoch(4), [handle])
    assert same(merging.orders.visible(), rows(1, 2, 3, 4))
    assert len(merging.manifests) == 2
    assert written[0] <= _files_of_metadata(tmp_path)


def _files_of_metadata(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("**/metadata/*.avro")}


def test_an_unknown_outcome_of_a_merge_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merging = Merging(tmp_path)
    merging.commit(3)

    def cut(*_: Any) -> None:
        raise ConnectionError("cut")

    with monkeypatch.context() as patched:
        patched.setattr(merging.orders.catalog, "commit_table", cut)
        with pytest.raises(OutcomeUnknown):
            merging.commit()
    merging.last -= 1
    merging.commit(2)
    assert same(merging.orders.visible(), rows(*range(1, 6)))


def test_a_conflict_postpones_the_merge(tmp_path: Path) -> None:
    merging = Merging(tmp_path)
    merging.commit(3)
    others = 0

    def write(point: FaultPoint, number: int | None) -> None:
        nonlocal others
        if point.name == "E5.table.loaded" and not others:
            others += 1
            merging.table.append(pa.Table.from_pylist(rows(100), SCHEMA))

    with injected(write):
        merging.commit()
    assert others == 1
    assert len(merging.manifests) == 5
    merging.commit()
    assert len(merging.manifests) == 4
    assert same(merging.orders.visible(), rows(1, 2, 3, 4, 5, 100))


def test_deleted_rows_stay_deleted(tmp_path: Path) -> None:
    merging = Merging(tmp_path)
    merging.commit(2)
    add_position_delete(merging.table, next(iter(merging.table.scan("id == 1").plan_files())).file, 0)
    merging.table.append(pa.Table.from_pylist(rows(100, 101), SCHEMA))
    merging.table.delete("id == 100")  # rewrites the file, and leaves an entry of the deleted one
    assert same(merging.orders.visible(), rows(2, 101))
    merging.commit(12)
    assert same(merging.orders.visible(), rows(2, *range(3, 15), 101))
    contents = [manifest.content for manifest in merging.manifests]
    assert contents.count(ManifestContent.DELETES) == 1
    assert len(contents) < 8
    with pytest.raises(Exception, match="has files of deleted rows"):
        IcebergSnapshots(merging.orders.address).whole(16)


def test_manifests_of_other_partitions_are_left_alone(tmp_path: Path) -> None:
    merging = Merging(tmp_path, partition_by=["name"])
    merging.commit(2)
    earlier = {manifest.manifest_path for manifest in merging.manifests}
    with merging.table.update_spec() as update:
        update.remove_field("name")
        update.add_field("id", IdentityTransform(), "id")
    merging.sink = merging.orders.make()
    merging.orders.partition_by = ()
    merging.sink = merging.started(2, attempt=2)
    merging.commit(8)
    specs = {manifest.manifest_path: manifest.partition_spec_id for manifest in merging.manifests}
    assert earlier <= set(specs)
    assert len(specs) < 8
    for manifest, entry in merging.entries(merging.manifests):
        assert entry.data_file.spec_id == manifest.partition_spec_id
        assert len(entry.data_file.partition) == 1
    assert same(merging.orders.visible(), rows(*range(1, 11)))


def test_a_merge_that_fails_does_not_stop_the_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    merging = Merging(tmp_path)
    merging.commit(3)
    path = Path(merging.manifests[-1].manifest_path.removeprefix("file://"))
    data = path.read_bytes()
    path.unlink()
    merging.commit(2)
    warnings = [record for record in caplog.records if "cannot be merged" in record.getMessage()]
    assert len(warnings) == 1  # and not in each commit
    path.write_bytes(data)
    merging.sink = merging.started(5, attempt=2)
    merging.commit()
    assert len(merging.manifests) == 4
    assert same(merging.orders.visible(), rows(*range(1, 7)))


def test_any_order_of_writers(tmp_path: Path, run_seed: int) -> None:
    chance = random.Random(run_seed)
    merging = Merging(tmp_path)
    expected: set[int] = set()
    for step in range(40):
        match chance.choice(["commit", "commit", "commit", "append", "delete", "column", "restart"]):
            case "commit":
                merging.commit()
                expected.add(merging.last)
            case "append":
                merging.table.append(pa.Table.from_pylist(rows(1000 + step), SCHEMA))
                expected.add(1000 + step)
            case "delete" if expected:
                gone = chance.choice(sorted(expected))
                merging.table.delete(f"id == {gone}")
                expected.remove(gone)
            case "restart":
                merging.sink = merging.started(merging.last, attempt=step + 2)
        assert {row["id"] for row in merging.orders.visible()} == expected
    assert same(merging.orders.visible(), rows(*expected))


def manifest(files: int | None, length: int = 100, spec: int = 0, deletes: bool = False) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=f"m-{random.random()}",
        manifest_length=length,
        partition_spec_id=spec,
        content=ManifestContent.DELETES if deletes else ManifestContent.DATA,
        added_files_count=files,
        existing_files_count=0,
        key_metadata=None,
    )


@pytest.mark.parametrize(
    ("manifests", "chosen"),
    [
        ([manifest(1) for _ in range(9)], 0),
        ([manifest(number) for number in range(10)], 0),  # one has no files
        ([manifest(1) for _ in range(25)], 10),
        ([*(manifest(1) for _ in range(5)), *(manifest(10) for _ in range(5))], 0),
        ([*(manifest(1) for _ in range(9)), *(manifest(10) for _ in range(10))], 10),
        ([manifest(1, 101) for _ in range(10)], 0),  # too large together
        ([*(manifest(1, 101) for _ in range(9)), *(manifest(1, 50) for _ in range(9))], 10),
        ([manifest(1, spec=1) for _ in range(10)], 0),
        ([manifest(1, deletes=True) for _ in range(10)], 0),
        ([manifest(None) for _ in range(10)], 0),
    ],
)
def test_only_small_manifests_of_one_size_are_merged(manifests: list[ManifestFile], chosen: int) -> None:
    assert len(small_manifests(manifests, 0, MergeLimits(10, 1000))) == chosen


def test_each_entry_is_rewritten_once_for_each_size() -> None:
    manifests: list[ManifestFile] = []
    rewritten = 0
    for _ in range(2000):
        small = small_manifests(manifests, 0, MergeLimits(10, 1 << 20))
        if small:
            files = sum(each.added_files_count or 0 for each in small)
            rewritten += files
            manifests = [each for each in manifests if each not in small] + [manifest(files)]
        manifests.append(manifest(1))
        assert len(manifests) <= 4 * 10
    assert rewritten <= 3 * 2000
