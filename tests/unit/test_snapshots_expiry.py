"""Expiry of rows read from files, compared with a model: every reader omits them from the same snapshot on."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import BEGINNING
from epochal.contracts.identity import EpochKey
from epochal.snapshots.bundle_writing import files_of
from epochal.snapshots.difference import table_difference
from epochal.snapshots.key_history import HistoryPosition, KeyChange, history_of_key
from epochal.snapshots.lineage import find_route, read_chains
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.scan import scan
from epochal.snapshots.store import SnapshotStore
from epochal.snapshots.verification import Verification
from epochal.state.expiry import Expiry, StateClock
from epochal.state.key_codec import KeyCodec
from epochal.state.table import StateTable
from tests.unit.snapshot_tree import SESSIONS, WINDOWS, Branch, Key

pytestmark = pytest.mark.usefixtures("empty_row_group_cache")
CITIES = ["JFK", "LA", None]
PLACES = [("N1", "A"), ("N1", "B"), ("N2", "A"), (None, "C")]
LATEST = SESSIONS.model_copy(
    update={
        "id": "visits.latest",
        "expires": Expiry(clock="event", column="_touched", after=4, refresh="read_and_write"),
    }
)
"""The table of a state with ``ttl_on="event_time"``."""
TIMED = (WINDOWS, SESSIONS, LATEST)


def timed(store: SnapshotStore) -> Branch:
    return Branch(store, tables=TIMED, clock=StateClock(event=BEGINNING, processing=0))


def any_epochs(branch: Branch, count: int, chance: random.Random) -> None:
    """Run epochs with puts, refreshes, deletes, moving clocks, bases, and changes of parallelism."""
    for _ in range(count):
        assert branch.clock is not None
        event, now = max(branch.clock.event, -1) + chance.choice([0, 0, 1, 3]), branch.clock.processing
        branch.clock = StateClock(event, now + chance.choice([0, 1, 4]))
        changes: list[Any] = []
        for _ in range(chance.randint(0, 3)):
            key = (chance.choice(CITIES), event + chance.randint(-4, 6))
            changes.append((WINDOWS, key, None if chance.random() < 0.2 else {"count": chance.randint(1, 2)}))
        for table, at in ((SESSIONS, now), (LATEST, event)):
            for place in chance.sample(PLACES, chance.randint(0, 2)):
                touched = chance.choice([at, at, at - 3, None])
                row = {"late": chance.randint(1, 2), "_touched": touched}
                read = branch.state.get(table.id, {}).get(place)
                if read is not None and chance.random() < 0.3:
                    row = read | {"_touched": at}  # a read that refreshes the row
                changes.append((table, place, None if chance.random() < 0.2 else row))
        branch.epoch(*{(table.id, key): (table, key, row) for table, key, row in changes}.values())
        if chance.random() < 0.2:
            branch.compact()
        if chance.random() < 0.1:
            branch.parallelism = chance.choice([1, 2, 3])


def tree(store: SnapshotStore, seed: int) -> tuple[list[Branch], random.Random]:
    chance = random.Random(seed)
    main = timed(store)
    any_epochs(main, 20, chance)
    fork = main.fork("fork", chance.choice(main.epochs))
    any_epochs(fork, 8, chance)
    return [main, fork], chance


def visible(row: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if row is None else {name: value for name, value in row.items() if name != "_touched"}


def keys_of(table: StateTable, rows: Iterable[Key]) -> list[Key]:
    return sorted(rows, key=KeyCodec(table.address_schema).encode_one)


@pytest.mark.parametrize("seed", range(4))
def test_look_ups_scans_and_whole_tables_omit_expired_rows(store: SnapshotStore, seed: int) -> None:
    branches, _ = tree(store, seed)
    for reference in {reference.key: reference for branch in branches for reference in branch.epochs[::3]}.values():
        reader = SnapshotReader(store, reference)
        for table in TIMED:
            rows = branches[0].models[reference.key].get(table.id, {})
            names, codec = [column.name for column in table.address], KeyCodec(table.address_schema)
            all_rows = reader.read(table.id).to_pylist()
            assert {tuple(row[name] for name in names) for row in all_rows} == rows.keys()
            wanted = (
                [*rows, *((city, at) for city in CITIES for at in (0, 9))] if table is WINDOWS else [*rows, *PLACES]
            )
            if wanted:
                assert reader.get(table.id, wanted) == [rows.get(key) for key in wanted]
            owners = [(city,) for city in CITIES] if table is WINDOWS else [("N1",), (None,)]
            for owner, entries in zip(owners, reader.entries(table.id, owners), strict=True):
                assert [tuple(row[name] for name in names[1:]) for row in entries] == [
                    key[1:] for key in keys_of(table, rows) if key[:1] == owner
                ]
            keys: list[bytes] = []
            while (page := scan(reader, table.id, b"", keys[-1] if keys else None, 3)).keys:
                keys += page.keys
            assert keys == [codec.encode_one(key) for key in keys_of(table, rows)]


def lineage(store: SnapshotStore, head: ManifestReference | None) -> list[ManifestReference]:
    line = []
    while head is not None:
        line.append(head)
        head = store.read_manifest(head).parent
    return line


@pytest.mark.parametrize("seed", range(4))
def test_the_history_of_a_row_includes_its_expiry(store: SnapshotStore, seed: int) -> None:
    branches, chance = tree(store, seed)
    for branch in branches:
        line = lineage(store, branch.head)
        for table, keys in (
            (WINDOWS, [("JFK",), (None,), ("LA", 3), ("LA", 8)]),
            (SESSIONS, [("N1", "A"), ("N1",), (None,)]),
            (LATEST, [("N1", "A"), ("N1",), (None,)]),
        ):
            for key in keys:
                expected = []
                for newer, older in zip(line, [*line[1:], None], strict=True):
                    after = branch.models[newer.key].get(table.id, {})
                    before = branch.models[older.key].get(table.id, {}) if older else {}
                    for full in keys_of(table, after.keys() | before.keys()):
                        if full[: len(key)] == key and visible(before.get(full)) != visible(after.get(full)):
                            expected.append((newer.key, full, visible(before.get(full)), visible(after.get(full))))
                found = history(branch, table, key, chance.choice([1, 2, 50]))
                assert [plain(table, change) for change in found] == expected
                deleted = {change.manifest.key for change in found if change.new is None and not change.expired}
                for at in deleted:
                    assert any(delta.table == table.id for delta in manifest_of(branch, line, at).deltas)


def manifest_of(branch: Branch, line: list[ManifestReference], at: EpochKey) -> Any:
    return branch.store.read_manifest(next(reference for reference in line if reference.key == at))


def history(branch: Branch, table: StateTable, key: Key, limit: int) -> list[KeyChange]:
    assert branch.head is not None
    position: HistoryPosition | None = HistoryPosition(branch.head)
    found: list[KeyChange] = []
    while position is not None:
        page = history_of_key(branch.store, table.id, key, position, limit)
        assert len(page.changes) <= limit
        found += page.changes
        position = page.following
    return found


def plain(table: StateTable, change: KeyChange) -> tuple[EpochKey, Key, Any, Any]:
    key = tuple(change.key[column.name] for column in table.address)
    return change.manifest.key, key, visible(change.old), visible(change.new)


def test_a_row_expires_in_the_epoch_whose_clock_reaches_its_time(store: SnapshotStore) -> None:
    branch = timed(store)
    branch.epoch((WINDOWS, ("JFK", 1), {"count": 1}), (SESSIONS, ("N1", "A"), {"late": 1, "_touched": 0}))
    for clock in (3, 4, 5, 6):
        branch.clock = StateClock(event=clock, processing=clock)
        refreshed = {"late": 1, "_touched": clock}
        branch.epoch(*[(SESSIONS, ("N1", "A"), refreshed)] * (clock == 4))
    branch.clock = StateClock(event=6, processing=9)
    branch.epoch()
    found = history(branch, WINDOWS, ("JFK",), 1)
    assert [(change.manifest.epoch, change.new, change.expired) for change in found] == [
        (3, None, True),
        (1, {"count": 1}, False),
    ]
    found = history(branch, SESSIONS, ("N1", "A"), 5)
    assert [(change.manifest.epoch, visible(change.new), change.expired) for change in found] == [
        (6, None, True),
        (1, {"late": 1}, False),
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.alternating(2)
def test_a_difference_marks_rows_that_expired_between_the_snapshots(
    store: SnapshotStore, seed: int, whole: bool
) -> None:
    branches, chance = tree(store, seed)
    models = branches[0].models
    everything = [*branches[0].epochs, *branches[1].epochs]
    expired = 0
    for _ in range(15):
        left, right = chance.choice(everything), chance.choice(everything)
        route = None if whole else find_route(store, left, right)
        for table in TIMED:
            found = table_difference(SnapshotReader(store, left), SnapshotReader(store, right), route, table.id)
            before, after = (models[reference.key].get(table.id, {}) for reference in (left, right))
            keys = [
                key
                for key in keys_of(table, before.keys() | after.keys())
                if visible(before.get(key)) != visible(after.get(key))
            ]
            assert found.keys.to_pylist() == [KeyCodec(table.address_schema).encode_one(key) for key in keys]
            assert found.had.tolist() == [key in before for key in keys]
            assert found.has.tolist() == [key in after for key in keys]
            assert found.added + found.changed + found.deleted + found.gone == len(keys)
            assert not (found.expired & found.has).any()
            expired += found.gone
    assert expired


def test_a_difference_uses_the_clocks_of_its_two_snapshots(store: SnapshotStore) -> None:
    """Rows with a time to live: one that expires, one that is refreshed, one that was deleted before its time."""
    branch = timed(store)
    places = [("N1", "A"), ("N1", "B"), ("N2", "A")]
    branch.epoch(*((SESSIONS, place, {"late": 1, "_touched": 0}) for place in places))
    branch.clock = StateClock(event=BEGINNING, processing=2)
    refreshed = {"late": 1, "_touched": 2}
    branch.epoch((SESSIONS, places[1], refreshed), (SESSIONS, places[2], None))
    branch.clock = StateClock(event=BEGINNING, processing=5)
    branch.epoch()

    def kinds(one: int, other: int) -> dict[Key, tuple[bool, bool, bool]]:
        """For each key: whether the row existed, whether it exists, and whether it counts as expired."""
        left, right = branch.epochs[one], branch.epochs[other]
        found = table_difference(
            SnapshotReader(store, left), SnapshotReader(store, right), find_route(store, left, right), SESSIONS.id
        )
        keys = [tuple(row.values()) for row in KeyCodec(SESSIONS.address_schema).decode(found.keys).to_pylist()]
        return dict(zip(keys, zip(found.had, found.has, found.expired, strict=True), strict=True))

    deleted, expired, added = (True, False, False), (True, False, True), (False, True, False)
    assert kinds(0, 1) == {places[2]: deleted}
    assert kinds(1, 2) == {places[0]: expired}
    assert kinds(0, 2) == {places[0]: expired, places[2]: expired}  # this row has expired as well
    assert kinds(2, 0) == {places[0]: added, places[2]: added}  # rows do not expire backwards


@pytest.mark.parametrize("seed", range(2))
def test_exported_snapshots_have_the_same_rows(store: SnapshotStore, seed: int, tmp_path: Path) -> None:
    branches, chance = tree(store, seed)
    for number, reference in enumerate(chance.sample(branches[1].epochs, 3)):
        copy = SnapshotStore(f"memory://{tmp_path}-{number}")
        belongs = files_of(store, reference, None)
        for path in [*(each.path for each in belongs.manifests), *(each.path for each in belongs.files)]:
            copy.write(path, store.read(path, "a file"))
        for table in TIMED:
            names = [column.name for column in table.address]
            rows = SnapshotReader(copy, reference).read(table.id).to_pylist()
            expected = branches[0].models[reference.key].get(table.id, {})
            found = {tuple(row[name] for name in names): visible(row) for row in rows}
            assert found == {
                key: dict(zip(names, key, strict=True)) | (visible(row) or {}) for key, row in expected.items()
            }


def test_a_base_is_repaired_byte_for_byte_after_rows_have_expired(store: SnapshotStore) -> None:
    branch = timed(store)
    for at in range(8):
        branch.clock = StateClock(event=at, processing=at)
        branch.epoch((WINDOWS, ("JFK", at), {"count": at}), (WINDOWS, ("LA", 100 + at), {"count": at}))
    branch.compact()
    bases = branch.bases
    assert sum(base.file.rows for base in bases if base.table == WINDOWS.id) == 8 + 3
    branch.clock = StateClock(event=50, processing=50)
    head = branch.epoch()
    (base,) = [base for base in bases if base.table == WINDOWS.id and base.file.rows > 3]
    store.write(base.file.path, b"damaged")
    report = Verification(store, [*branch.epochs[:-1], head]).run(repair=True)
    assert [finding.repaired for finding in report.findings] == [True]
    chain = read_chains(store, head, [WINDOWS.id])[WINDOWS.id]
    assert chain.bases
    assert SnapshotReader(store, head).read(WINDOWS.id).num_rows == 8
