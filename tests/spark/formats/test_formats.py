"""A stored store and bundle of the present format are read, restored and verified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.backends import heap, lmdb, recent
from epochal.backends.heap import HeapBackend
from epochal.backends.lmdb import LmdbBackend
from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateTaskScope
from epochal.snapshots import row_groups
from epochal.snapshots.bundle_reading import BundleReader
from epochal.snapshots.bundle_writing import files_of
from epochal.snapshots.discovery import discover
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from epochal.state.access import TableAccess
from epochal.state.keygroups import key_groups
from epochal.state.table import StateTable
from tests.spark.formats.make import (
    BUNDLE,
    FORK,
    MAIN,
    RECENT,
    STATE,
    STORE,
    TABLES,
    rows_as_json,
)
from tests.unit.snapshot_tree import GROUPS, Rows

FIXTURE = Path(__file__).parent / "stored"
Backend = type[HeapBackend | LmdbBackend]


@dataclass(frozen=True)
class Stored:
    """A copy of the fixture, and the rows of its snapshots."""

    store: SnapshotStore
    bundle: Path
    snapshots: dict[EpochKey, ManifestReference]
    tables: dict[EpochKey, dict[str, list[Any]]]

    @property
    def newest(self) -> ManifestReference:
        return self.snapshots[EpochKey(MAIN, 4)]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    folder = tmp_path / "stored"
    shutil.copytree(FIXTURE, folder)
    described = json.loads((folder / STATE).read_text())
    snapshots = [ManifestReference.model_validate(each["snapshot"]) for each in described]
    tables = [each["tables"] for each in described]
    keys = [snapshot.key for snapshot in snapshots]
    store = SnapshotStore(str(folder / STORE))
    return Stored(store, folder / BUNDLE, dict(zip(keys, snapshots, strict=True)), dict(zip(keys, tables, strict=True)))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Caches are empty, as in a new worker."""
    yield
    for module in (heap, lmdb, recent, row_groups):
        module.forget()


def rows_of(table: StateTable, rows: pa.Table) -> Rows:
    """Rows by their keys, as Python values."""
    keys = rows.select(table.key_schema.names).to_pylist()
    values = rows.select(table.value_schema.names).to_pylist()
    return {tuple(key.values()): value for key, value in zip(keys, values, strict=True)}


def plain(rows: Rows) -> list[Any]:
    """Rows in the form of ``state.json``."""
    return rows_as_json(rows)


def test_every_snapshot_is_read(stored: Stored) -> None:
    for key, tables in stored.tables.items():
        reader = SnapshotReader(stored.store, stored.snapshots[key])
        assert {table.id: plain(rows_of(table, reader.read(table.id))) for table in TABLES} == tables


def test_look_ups_find_values_and_entries(stored: Stored) -> None:
    for key in (EpochKey(MAIN, 2), EpochKey(MAIN, 4), EpochKey(FORK, 5)):
        reader = SnapshotReader(stored.store, stored.snapshots[key])
        for table in TABLES:
            model = rows_of(table, reader.read(table.id))
            absent = tuple("missing" if column.type == "string" else None for column in table.key[:1])
            keys = [*model, (*absent, *next(iter(model))[1:])]
            assert reader.get(table.id, keys) == [*model.values(), None]
        tail = next(iter(rows_of(RECENT, reader.read(RECENT.id))))[:1]
        mine = sorted(each for each in rows_of(RECENT, reader.read(RECENT.id)) if each[:1] == tail)
        assert [entry["_index"] for entry in reader.entries(RECENT.id, [tail])[0]] == [each[1] for each in mine]


@pytest.mark.parametrize("backend", [HeapBackend, LmdbBackend])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_state_is_restored(stored: Stored, tmp_path: Path, backend: Backend, parallelism: int) -> None:
    for key in (EpochKey(MAIN, 4), EpochKey(FORK, 5)):
        assert restored(stored, stored.snapshots[key], backend, parallelism, tmp_path) == stored.tables[key]


def restored(
    stored: Stored, head: ManifestReference, backend: Backend, parallelism: int, folder: Path
) -> dict[str, list[Any]]:
    """The rows of all existing keys, as the subtasks of new workers read them."""
    for module in (heap, lmdb, recent):
        module.forget()
    shutil.rmtree(folder / "cache", ignore_errors=True)
    chains = read_chains(stored.store, head, [table.id for table in TABLES])
    every: dict[str, Rows] = {table.id: {} for table in TABLES}
    for operator in ("delays", "planes"):
        tables = tuple(table for table in TABLES if table.operator == operator)
        for subtask in range(parallelism):
            scope = scope_of(tables, head, subtask, parallelism, chains)
            transaction = backend(operator, stored.store, str(folder / "cache")).start(scope)
            for table in tables:
                keys = all_keys(stored, table)
                mine = keys.filter(pa.array(key_groups(keys, table.owner_schema, GROUPS) % parallelism == subtask))
                found, values = TableAccess(table, transaction.view(table.id), GROUPS).get(mine)
                restored = pa.table([*mine.columns, *values.columns], [*mine.column_names, *values.column_names])
                every[table.id] |= rows_of(table, restored.filter(pa.array(found)))
            transaction.discard()
    return {id: plain(rows) for id, rows in every.items()}


def scope_of(
    tables: tuple[StateTable, ...], head: ManifestReference, subtask: int, parallelism: int, chains: Any
) -> StateTaskScope:
    epoch = EpochScope("flights", EpochKey(head.branch, head.epoch + 1), 1, head.key)
    mine = {table.id: chains[table.id] for table in tables}
    return StateTaskScope(epoch, tables[0].operator, subtask, parallelism, GROUPS, tables, mine)


def all_keys(stored: Stored, table: StateTable) -> pa.Table:
    """The keys of all snapshots."""
    found = [SnapshotReader(stored.store, head).read(table.id) for head in stored.snapshots.values()]
    keys = {key for rows in found for key in rows_of(table, rows)}
    return pa.table(list(map(list, zip(*sorted(keys), strict=True))), schema=table.key_schema)


def test_verification_finds_no_damage_and_repairs_a_base_byte_for_byte(stored: Stored) -> None:
    found = discover(stored.store)
    assert {root.key for root in found.roots} == stored.snapshots.keys() and not found.unreadable
    report = Verification(stored.store, found.roots).run()
    assert report.is_sound and not report.unreferenced
    base = stored.store.read_manifest(stored.snapshots[EpochKey(MAIN, 3)]).bases[0].file
    stored.store.write(base.path, bytes(base.bytes))
    report = Verification(stored.store, found.roots).run(repair=True)
    assert [(finding.path, finding.repaired) for finding in report.findings] == [(base.path, True)]
    assert stored.store.read_file(base, "the test")


def test_the_stored_bundle_is_read(stored: Stored, tmp_path: Path) -> None:
    """Its members are those of an export of the stored snapshot."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    with BundleReader(stored.bundle, folder) as reader:
        epochs = [epoch.key for epoch in reader.epochs()]
        members = list(reader.members())
    assert epochs == [EpochKey(MAIN, number) for number in (4, 3, 2, 1)]
    files = files_of(stored.store, stored.newest, None)
    named = {file.sha256 for file in files.files} | {manifest.sha256 for manifest in files.manifests}
    assert {member.sha256 for member in members if member.kind != "artifacts"} == named
