"""Stores and bundles of every format that there has been: read, continued, compacted, checked, exported, imported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import epochal
from epochal.backends import heap, lmdb, recent
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope
from epochal.snapshots import collection, row_groups
from epochal.snapshots.bundle_reading import BundleReader
from epochal.snapshots.bundle_writing import files_of
from epochal.snapshots.delta import read_delta
from epochal.snapshots.difference import table_difference
from epochal.snapshots.discovery import discover
from epochal.snapshots.layout import FORMAT
from epochal.snapshots.lineage import find_route, read_chains
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.references import References
from epochal.snapshots.scan import scan
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from epochal.state.access import TableAccess
from epochal.state.keygroups import key_groups
from epochal.state.table import StateTable
from tests.spark.formats.make import (
    AIRPORTS,
    BUNDLE,
    DELAYS,
    FORK,
    LAST,
    MAIN,
    RECENT,
    STATE,
    STORE,
    TABLES,
    rows_as_json,
)
from tests.unit.snapshot_tree import GROUPS, Branch, Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = Path(__file__).parent
Backend = type[HeapBackend | LmdbBackend]


@dataclass(frozen=True)
class Kept:
    """A store of one format, in a copy, and what it holds."""

    store: SnapshotStore
    bundle: Path
    snapshots: dict[EpochKey, ManifestReference]
    tables: dict[EpochKey, dict[str, list[Any]]]

    def branch(self, branch: str, epoch: int, name: str | None = None) -> Branch:
        """The line that ends at a snapshot, to be continued; with a ``name`` a new branch on it."""
        key = EpochKey(branch, epoch)
        head = self.snapshots[key]
        reader = SnapshotReader(self.store, head)
        return Branch(
            self.store,
            name or branch,
            "flights",
            TABLES,
            head=head,
            state={table.id: rows_of(table, reader.read(table.id)) for table in TABLES},
        )

    @property
    def newest(self) -> ManifestReference:
        return self.snapshots[EpochKey(MAIN, 4)]


@pytest.fixture(params=[folder.name for folder in sorted(KEPT.iterdir()) if folder.name.isdigit()])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    folder = tmp_path / "kept"
    shutil.copytree(KEPT / request.param, folder)
    said = json.loads((folder / STATE).read_text())
    snapshots = [ManifestReference.model_validate(each["snapshot"]) for each in said]
    tables = [each["tables"] for each in said]
    keys = [snapshot.key for snapshot in snapshots]
    store = SnapshotStore(str(folder / STORE))
    return Kept(store, folder / BUNDLE, dict(zip(keys, snapshots, strict=True)), dict(zip(keys, tables, strict=True)))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """As in a new worker."""
    yield
    for module in (heap, lmdb, recent, row_groups):
        module.forget()


def rows_of(table: StateTable, rows: pa.Table) -> Rows:
    """Rows by their keys, as Python values."""
    keys = rows.select(table.key_schema.names).to_pylist()
    values = rows.select(table.value_schema.names).to_pylist()
    return {tuple(key.values()): value for key, value in zip(keys, values, strict=True)}


def plain(rows: Rows) -> list[Any]:
    """As ``state.json`` has them."""
    return rows_as_json(rows)


def test_every_snapshot_is_read(kept: Kept) -> None:
    for key, tables in kept.tables.items():
        reader = SnapshotReader(kept.store, kept.snapshots[key])
        assert {table.id: plain(rows_of(table, reader.read(table.id))) for table in TABLES} == tables


def test_look_ups_find_values_and_entries(kept: Kept) -> None:
    for key in (EpochKey(MAIN, 2), EpochKey(MAIN, 4), EpochKey(FORK, 5)):
        reader = SnapshotReader(kept.store, kept.snapshots[key])
        for table in TABLES:
            model = rows_of(table, reader.read(table.id))
            gone = tuple("nobody" if column.type == "string" else None for column in table.key[:1])
            keys = [*model, (*gone, *next(iter(model))[1:])]
            assert reader.get(table.id, keys) == [*model.values(), None]
        tail = next(iter(rows_of(RECENT, reader.read(RECENT.id))))[:1]
        mine = sorted(each for each in rows_of(RECENT, reader.read(RECENT.id)) if each[:1] == tail)
        assert [entry["_index"] for entry in reader.entries(RECENT.id, [tail])[0]] == [each[1] for each in mine]


@pytest.mark.parametrize("backend", [HeapBackend, LmdbBackend])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_state_is_restored(kept: Kept, tmp_path: Path, backend: Backend, parallelism: int) -> None:
    for key in (EpochKey(MAIN, 4), EpochKey(FORK, 5)):
        assert restored(kept, kept.snapshots[key], backend, parallelism, tmp_path) == kept.tables[key]


@pytest.mark.parametrize("backend", [HeapBackend, LmdbBackend])
def test_an_epoch_is_run_on_it(kept: Kept, tmp_path: Path, backend: Backend) -> None:
    """With another parallelism; the chain has files of both formats then, and is restored anew."""
    head = kept.newest
    key = ("city 1", date(2013, 1, 2))
    values = {"flights": 77, "worst": None, "mean_sum": 1, "mean_count": 2}
    chains = read_chains(kept.store, head, [table.id for table in TABLES])
    deltas: list[DeltaFile] = []
    for subtask in range(3):
        scope = scope_of((DELAYS,), head, subtask, 3, chains)
        engine = backend("delays", kept.store, str(tmp_path / "cache"))
        transaction = engine.start(scope)
        keys = pa.table({"city": [key[0]], "day": [key[1]]}, schema=DELAYS.key_schema)
        group = key_groups(keys, DELAYS.key_schema, GROUPS)
        changes = {"_kg": group, "_op": ["put"], **{name: keys[name] for name in keys.column_names}}
        changes |= {name: [value] for name, value in values.items()}
        if group % 3 == subtask:
            transaction.stage("delays", pa.table(changes, schema=DELAYS.delta_schema))
        deltas += engine.deltas(transaction.pre_commit())
    before = kept.store.read_manifest(head)
    following = before.model_copy(
        update={"epoch": 5, "parent": head, "deltas": tuple(deltas), "bases": (), "format": FORMAT}
    )
    reference = kept.store.write_manifest(following)
    expected = dict(kept.tables[head.key])
    rows = rows_of(DELAYS, SnapshotReader(kept.store, head).read("delays")) | {key: values}
    expected["delays"] = plain(rows)
    for parallelism in (2, 3):
        assert restored(kept, reference, backend, parallelism, tmp_path) == expected


def restored(
    kept: Kept, head: ManifestReference, backend: Backend, parallelism: int, folder: Path
) -> dict[str, list[Any]]:
    """What all subtasks of new workers on a new machine see of the keys that there are, and of none else."""
    for module in (heap, lmdb, recent):
        module.forget()
    shutil.rmtree(folder / "cache", ignore_errors=True)
    chains = read_chains(kept.store, head, [table.id for table in TABLES])
    every: dict[str, Rows] = {table.id: {} for table in TABLES}
    for operator in ("delays", "planes"):
        tables = tuple(table for table in TABLES if table.operator == operator)
        for subtask in range(parallelism):
            scope = scope_of(tables, head, subtask, parallelism, chains)
            transaction = backend(operator, kept.store, str(folder / "cache")).start(scope)
            for table in tables:
                keys = all_keys(kept, table)
                mine = keys.filter(pa.array(key_groups(keys, table.owner_schema, GROUPS) % parallelism == subtask))
                found, values = TableAccess(table, transaction.view(table.id), GROUPS).get(mine)
                there = pa.table([*mine.columns, *values.columns], [*mine.column_names, *values.column_names])
                every[table.id] |= rows_of(table, there.filter(pa.array(found)))
            transaction.discard()
    return {id: plain(rows) for id, rows in every.items()}


def scope_of(
    tables: tuple[StateTable, ...], head: ManifestReference, subtask: int, parallelism: int, chains: Any
) -> StateTaskScope:
    epoch = EpochScope("flights", EpochKey(head.branch, head.epoch + 1), 1, head.key)
    mine = {table.id: chains[table.id] for table in tables}
    return StateTaskScope(epoch, tables[0].operator, subtask, parallelism, GROUPS, tables, mine)


def all_keys(kept: Kept, table: StateTable) -> pa.Table:
    """Every key that any snapshot has or had."""
    found = [SnapshotReader(kept.store, head).read(table.id) for head in kept.snapshots.values()]
    keys = {key for rows in found for key in rows_of(table, rows)}
    return pa.table(list(map(list, zip(*sorted(keys), strict=True))), schema=table.key_schema)


def test_forks_and_rollbacks_go_on(kept: Kept) -> None:
    for branch, epoch in ((MAIN, 4), (MAIN, 2), (FORK, 5)):
        line = kept.branch(branch, epoch, f"new-{branch}-{epoch}")
        line.epoch((AIRPORTS, ("N000é", "A1"), {"times": 99}), (LAST, ("N001é",), None))
        line.compact()
        line.epoch((AIRPORTS, ("N000é", "A2"), None))
        assert line.head is not None
        reader = SnapshotReader(kept.store, line.head)
        for table in TABLES:
            assert rows_of(table, reader.read(table.id)) == line.state[table.id]
        assert reader.chain(LAST.id).base_at == EpochKey(line.name, epoch + 1)


def test_scans_and_differences(kept: Kept) -> None:
    there, fork = (SnapshotReader(kept.store, kept.snapshots[key]) for key in (EpochKey(MAIN, 4), EpochKey(FORK, 5)))
    for table in TABLES:
        scanned = scan(there, table.id, b"", None, 1000)
        assert plain(rows_of(table, scanned.rows)) == kept.tables[EpochKey(MAIN, 4)][table.id]
        route = find_route(kept.store, there.reference, fork.reference)
        difference = table_difference(there, fork, route, table.id)
        old, new = rows_of(table, there.read(table.id)), rows_of(table, fork.read(table.id))
        assert difference.added == len(new.keys() - old.keys())
        assert difference.deleted == len(old.keys() - new.keys())
        assert difference.changed == sum(new[key] != old[key] for key in old.keys() & new.keys())


def test_bases_of_another_snapshot_are_compacted_into_new_ones(kept: Kept) -> None:
    line = kept.branch(MAIN, 4)
    line.compact()
    line.epoch()
    reader = SnapshotReader(kept.store, line.epochs[-1])
    assert reader.chain(DELAYS.id).base_at == EpochKey(MAIN, 4)
    for table in TABLES:
        assert plain(rows_of(table, reader.read(table.id))) == kept.tables[EpochKey(MAIN, 4)][table.id]


def test_it_is_sound_and_its_bases_are_written_again_byte_for_byte(kept: Kept) -> None:
    found = discover(kept.store)
    assert {root.key for root in found.roots} == kept.snapshots.keys() and not found.unreadable
    report = Verification(kept.store, found.roots).run()
    assert report.is_sound and not report.unreferenced
    base = kept.store.read_manifest(kept.snapshots[EpochKey(MAIN, 3)]).bases[0].file
    kept.store.write(base.path, bytes(base.bytes))
    report = Verification(kept.store, found.roots).run(repair=True)
    assert [(finding.path, finding.repaired) for finding in report.findings] == [(base.path, True)]
    assert kept.store.read_file(base, "the test")


def test_nothing_of_it_is_collected_but_what_expired(kept: Kept) -> None:
    references = References(kept.store)
    listed = kept.store.entries()
    later = datetime.now(UTC) + timedelta(days=30)

    def doomed(*keys: EpochKey) -> set[str]:
        needed = set().union(*(references.needed(kept.snapshots[key]) for key in keys))
        branches = {MAIN: collection.BranchFacts((1, 2, 3, 4)), FORK: collection.BranchFacts((4, 5))}
        facts = collection.StoreFacts(branches=branches, needed=needed)
        return {file.path for file in collection.plan(facts, listed, later, timedelta(days=1)).files}

    assert doomed(*kept.snapshots) == set()
    gone = doomed(EpochKey(MAIN, 3), EpochKey(MAIN, 4))
    assert gone and all(path.startswith(FORK) or path.partition("/epochs/")[2][:10] <= "0000000002" for path in gone)


def test_a_bundle_of_it_is_read(kept: Kept, tmp_path: Path) -> None:
    """The one that was kept; its members are those that an export would take now."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    with BundleReader(kept.bundle, folder) as reader:
        epochs = [epoch.key for epoch in reader.epochs()]
        members = list(reader.members())
    assert epochs == [EpochKey(MAIN, number) for number in (4, 3, 2, 1)]
    files = files_of(kept.store, kept.newest, None)
    named = {file.sha256 for file in files.files} | {manifest.sha256 for manifest in files.manifests}
    assert {member.sha256 for member in members if member.kind != "artifacts"} == named


def test_spark_reads_it(spark: SparkSession, kept: Kept) -> None:
    state = epochal.read_state(spark, kept.store.url, AIRPORTS.id, branch=MAIN)
    found = {(row.tail, row.airport): {"times": row.times} for row in state.collect()}
    assert plain(found) == kept.tables[EpochKey(MAIN, 4)][AIRPORTS.id]
    mean = epochal.read_state(spark, kept.store.url, DELAYS.id, branch=FORK).where("city = 'city 3'").collect()[0]
    assert mean["mean"] == mean.mean_sum / mean.mean_count


def test_deltas_say_what_they_are_of(kept: Kept) -> None:
    for head in kept.snapshots.values():
        manifest = kept.store.read_manifest(head)
        for delta in manifest.deltas:
            table = next(table for table in TABLES if table.id == delta.table)
            assert read_delta(kept.store, table, delta).num_rows == delta.file.rows
