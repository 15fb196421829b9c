"""History of a key, differences and scans, compared with a model: bases, deletes, forks, rescales, new schemas."""

from __future__ import annotations

import random
from typing import Any

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing, InvalidInput, InvalidKey, NotFound, SchemaError
from epochal.snapshots import scan as scans
from epochal.snapshots.difference import TableDifference, table_difference
from epochal.snapshots.immutable_cache import SizedCache
from epochal.snapshots.key_history import HistoryPosition, KeyChange, history_of_key
from epochal.snapshots.lineage import find_route
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.scan import scan
from epochal.snapshots.store import SnapshotStore
from epochal.state.key_codec import KeyCodec
from epochal.state.table import Column, StateTable
from tests.unit.snapshot_tree import TOTALS, VISITS, Branch, Key, Rows

pytestmark = pytest.mark.usefixtures("empty_row_group_cache")
CITIES = [("JFK", day) for day in range(6)] + [
    ("LAX", 1),
    ("LA", 1),
    ("ÅÄ\0", 2),
    (None, 1),
    ("JFK", None),
    (None, None),
]
TAILS = [(tail, airport) for tail in ("N1", "N2", None) for airport in ("A", "AB", "B")]


def any_epochs(branch: Branch, count: int, chance: random.Random) -> None:
    """Run epochs with puts (some of the same row), deletes or no change, bases, and changes of parallelism."""
    for _ in range(count):
        changes: list[Any] = []
        for key in chance.sample(CITIES, chance.randint(0, 3)):
            worst = chance.choice([None, 1.5, float("nan")])
            row = None if chance.random() < 0.25 else {"count": chance.randint(1, 3), "worst": worst}
            changes.append((TOTALS, key, row))
        for place in chance.sample(TAILS, chance.randint(0, 2)):
            changes.append((VISITS, place, None if chance.random() < 0.3 else {"late": chance.randint(1, 2)}))
        branch.epoch(*changes)
        if chance.random() < 0.15:
            branch.compact()
        if chance.random() < 0.1:
            branch.parallelism = chance.choice([1, 2, 3])


def line_of(store: SnapshotStore, head: ManifestReference | None) -> list[ManifestReference]:
    """Newest first."""
    line = []
    while head is not None:
        line.append(head)
        head = store.read_manifest(head).parent
    return line


def same(old: dict[str, Any] | None, new: dict[str, Any] | None) -> bool:
    return repr(old) == repr(new)


def expected_history(branch: Branch, table: StateTable, key: Key) -> list[tuple[EpochKey, Key, Any, Any]]:
    """The history of all full keys that begin with ``key``."""
    found = []
    line = line_of(branch.store, branch.head)
    for newer, older in zip(line, [*line[1:], None], strict=True):
        after = branch.models[newer.key].get(table.id, {})
        before = branch.models[older.key].get(table.id, {}) if older else {}
        for full_key in sorted(after.keys() | before.keys(), key=KeyCodec(table.key_schema).encode_one):
            if full_key[: len(key)] == key and not same(before.get(full_key), after.get(full_key)):
                found.append((newer.key, full_key, before.get(full_key), after.get(full_key)))
    return found


def read_history(branch: Branch, table: StateTable, key: Key, limit: int) -> list[KeyChange]:
    assert branch.head is not None
    position: HistoryPosition | None = HistoryPosition(branch.head)
    found: list[KeyChange] = []
    while position is not None:
        page = history_of_key(branch.store, table.id, key, position, limit)
        assert len(page.changes) <= limit
        assert page.expired is None
        found += page.changes
        position = page.following
    return found


def plain(change: KeyChange) -> tuple[EpochKey, Key, Any, Any]:
    return change.manifest.key, tuple(change.key.values()), change.old, change.new


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.alternating(2)
def test_the_history_of_a_key_equals_that_of_the_model(store: SnapshotStore, seed: int) -> None:
    chance = random.Random(seed)
    main = Branch(store)
    any_epochs(main, 25, chance)
    fork = main.fork("fork", chance.choice(main.epochs))
    any_epochs(fork, 12, chance)
    for branch in (main, fork):
        for table, keys in (
            (TOTALS, CITIES[:3] + CITIES[-3:]),
            (VISITS, [("N1", "AB"), ("N1",), (None,), (None, "A"), ("N3",)]),
        ):
            for key in keys:
                found = [plain(change) for change in read_history(branch, table, key, chance.choice([1, 2, 50]))]
                assert repr(found) == repr(expected_history(branch, table, key))


def test_a_write_of_the_same_value_is_not_a_change(store: SnapshotStore) -> None:
    branch = Branch(store)
    row = {"count": 1, "worst": float("nan")}
    branch.epoch((TOTALS, ("JFK", 1), row))
    branch.epoch((TOTALS, ("JFK", 1), row), (TOTALS, ("LAX", 1), None))
    assert [plain(change)[0].epoch for change in read_history(branch, TOTALS, ("JFK", 1), 10)] == [1]
    assert read_history(branch, TOTALS, ("LAX", 1), 10) == []


def test_a_history_with_deleted_epochs_names_its_first_epoch(store: SnapshotStore) -> None:
    branch = Branch(store)
    for count in range(1, 5):
        branch.epoch((TOTALS, ("JFK", 1), {"count": count, "worst": None}))
    branch.compact()
    for count in range(5, 8):
        branch.epoch((TOTALS, ("JFK", 1), {"count": count, "worst": None}))
    for reference in branch.epochs[:4]:
        store.delete(reference.path)
        for delta in store.read_manifest(reference).deltas:
            store.delete(delta.file.path)
    assert branch.head is not None
    for limit in (1, 2, 3, 9):
        position: HistoryPosition | None = HistoryPosition(branch.head)
        seen = []
        while position is not None:
            page = history_of_key(store, "totals", ("JFK", 1), position, limit)
            seen += [(change.manifest.epoch, change.old and change.old["count"]) for change in page.changes]
            position = page.following
        assert seen == [(7, 6), (6, 5), (5, 4)]
        assert page.expired is not None
        assert page.expired.since == EpochKey("main", 4)


def test_a_missing_file_after_the_last_base_is_named(store: SnapshotStore) -> None:
    branch = Branch(store)
    for count in range(4):
        branch.epoch((TOTALS, ("JFK", 1), {"count": count, "worst": None}))
    (delta,) = store.read_manifest(branch.epochs[1]).deltas
    store.delete(delta.file.path)
    assert branch.head is not None
    with pytest.raises(FileMissing, match=delta.file.path):
        history_of_key(store, "totals", ("JFK", 1), HistoryPosition(branch.head), 10)


def test_invalid_keys_and_unknown_tables_are_refused(store: SnapshotStore) -> None:
    branch = Branch(store)
    head = branch.epoch((TOTALS, ("JFK", 1), {"count": 1, "worst": None}))
    with pytest.raises(NotFound, match=r"totals, visits\.places"):
        history_of_key(store, "total", ("JFK", 1), HistoryPosition(head), 10)
    with pytest.raises(InvalidKey):
        history_of_key(store, "visits.places", ("N1", None), HistoryPosition(head), 10)


def expected_difference(before: Rows, after: Rows) -> dict[Key, tuple[Any, Any]]:
    keys = before.keys() | after.keys()
    return {key: (before.get(key), after.get(key)) for key in keys if not same(before.get(key), after.get(key))}


def plain_difference(table: StateTable, found: TableDifference) -> dict[Key, tuple[Any, Any]]:
    def rows(side: Any, exists: Any) -> list[Any]:
        values = side.select([column.name for column in table.value]).to_pylist()
        return [row if present else None for row, present in zip(values, exists, strict=True)]

    keys = [tuple(row.values()) for row in KeyCodec(table.key_schema).decode(found.keys).to_pylist()]
    assert keys == sorted(keys, key=KeyCodec(table.key_schema).encode_one)
    return dict(zip(keys, zip(rows(found.old, found.had), rows(found.new, found.has), strict=True), strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.alternating(2)
def test_the_difference_of_any_two_snapshots_equals_that_of_the_model(
    store: SnapshotStore, seed: int, whole: bool
) -> None:
    chance = random.Random(seed)
    main = Branch(store)
    any_epochs(main, 15, chance)
    forks = [main.fork(f"fork-{number}", chance.choice(main.epochs)) for number in range(2)]
    for fork in forks:
        any_epochs(fork, 6, chance)
    everything = [*main.epochs, *forks[0].epochs, *forks[1].epochs]
    for _ in range(12):
        left, right = chance.choice(everything), chance.choice(everything)
        route = None if whole else find_route(store, left, right)
        for table in (TOTALS, VISITS):
            found = table_difference(SnapshotReader(store, left), SnapshotReader(store, right), route, table.id)
            before, after = (main.models[reference.key].get(table.id, {}) for reference in (left, right))
            expected = expected_difference(before, after)
            assert repr(sorted(plain_difference(table, found).items(), key=repr)) == repr(
                sorted(expected.items(), key=repr)
            )
            assert found.added == sum(old is None for old, _ in expected.values())
            assert found.deleted == sum(new is None for _, new in expected.values())
            assert found.added + found.deleted + found.changed == len(expected)


def test_neighbouring_snapshots_are_compared_by_one_delta(store: SnapshotStore) -> None:
    branch = Branch(store)
    for number in range(10):
        branch.epoch((TOTALS, ("JFK", number), {"count": 1, "worst": None}))
    route = find_route(store, branch.epochs[8], branch.epochs[9])
    assert route is not None
    assert route.ancestor == branch.epochs[8]
    assert (len(route.left), len(route.right)) == (0, 1)


def test_an_evolved_schema_is_compared_by_common_columns(store: SnapshotStore) -> None:
    branch = Branch(store, tables=(TOTALS,))
    first = branch.epoch(
        (TOTALS, ("JFK", 1), {"count": 1, "worst": 2.5}), (TOTALS, ("LAX", 1), {"count": 7, "worst": 0.5})
    )
    evolved = redeclared(value=(Column(name="count", type="bigint"), Column(name="mean", type="double", default=0.5)))
    branch.tables = (evolved,)
    second = branch.epoch((evolved, ("JFK", 1), {"count": 1, "mean": 9.0}))
    third = branch.epoch((evolved, ("JFK", 1), {"count": 2, "mean": 9.0}))
    readers = [SnapshotReader(store, reference) for reference in (first, second, third)]
    none = table_difference(readers[0], readers[1], find_route(store, first, second), "totals")
    assert (none.added, none.changed, none.deleted, none.compared) == (0, 0, 0, ("count",))
    one = table_difference(readers[0], readers[2], find_route(store, first, third), "totals")
    assert plain_difference_of(one) == [({"count": 1, "worst": 2.5}, {"count": 2, "mean": 9.0})]
    assert readers[0].get("totals", [("LAX", 1)]) == [{"count": 7, "worst": 0.5}]
    assert readers[2].get("totals", [("LAX", 1)]) == [{"count": 7, "mean": 0.5}]
    epochs = [plain(change) for change in read_history(branch, evolved, ("JFK", 1), 10)]
    assert [(at.epoch, old, new) for at, _, old, new in epochs] == [
        (3, {"count": 1, "mean": 9.0}, {"count": 2, "mean": 9.0}),
        (1, None, {"count": 1, "worst": 2.5}),
    ]


def redeclared(**columns: Any) -> StateTable:
    return StateTable.model_validate({**TOTALS.model_dump(), **columns})


def plain_difference_of(found: TableDifference) -> list[tuple[Any, Any]]:
    assert found.before is not None
    assert found.after is not None
    names = [[column.name for column in table.value] for table in (found.before, found.after)]
    return list(zip(found.old.select(names[0]).to_pylist(), found.new.select(names[1]).to_pylist(), strict=True))


def test_dropped_and_added_tables_have_differences_and_histories(store: SnapshotStore) -> None:
    branch = Branch(store, tables=(TOTALS,))
    first = branch.epoch((TOTALS, ("JFK", 1), {"count": 1, "worst": None}))
    branch.tables = (VISITS,)
    second = branch.epoch((VISITS, ("N1", "A"), {"late": 1}))
    branch.tables = (TOTALS, VISITS)
    third = branch.epoch(
        (TOTALS, ("JFK", 1), {"count": 1, "worst": None}), (TOTALS, ("LAX", 1), {"count": 2, "worst": None})
    )
    other = redeclared(key=(Column(name="city", type="string"),))
    branch.tables = (other, VISITS)
    fourth = branch.epoch((other, ("JFK",), {"count": 1, "worst": None}))

    def counts(left: ManifestReference, right: ManifestReference, table: str) -> tuple[int, int, int]:
        route = find_route(store, left, right)
        found = table_difference(SnapshotReader(store, left), SnapshotReader(store, right), route, table)
        return found.added, found.changed, found.deleted

    assert counts(first, second, "totals") == (0, 0, 1)
    assert counts(second, first, "totals") == (1, 0, 0)
    assert counts(first, second, "visits.places") == (1, 0, 0)
    assert counts(second, third, "totals") == (2, 0, 0)
    assert counts(first, third, "totals") == (1, 0, 0)
    with pytest.raises(SchemaError, match="different keys"):
        counts(third, fourth, "totals")
    with pytest.raises(NotFound, match="Neither"):
        counts(first, second, "nothing")
    # The dropped table had the same name, but its rows do not belong to this history.
    changes = history_of_key(store, "totals", ("JFK", 1), HistoryPosition(third), 10).changes
    assert [change.manifest.epoch for change in changes] == [3]


def test_snapshots_without_a_common_ancestor_are_not_compared(store: SnapshotStore) -> None:
    ours = Branch(store).epoch((TOTALS, ("JFK", 1), {"count": 1, "worst": None}))
    theirs = Branch(store, "other", "other").epoch((TOTALS, ("JFK", 1), {"count": 1, "worst": None}))
    with pytest.raises(InvalidInput, match="no common snapshot"):
        find_route(store, ours, theirs)


def test_whole_states_are_compared_if_manifests_between_have_expired(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = Branch(store)
    for count in range(1, 5):
        branch.epoch((TOTALS, ("JFK", count), {"count": count, "worst": None}))
    branch.compact()
    last = branch.epoch((TOTALS, ("JFK", 1), {"count": 9, "worst": None}))
    for reference in branch.epochs[2:3]:
        store.delete(reference.path)
    first = branch.epochs[0]
    monkeypatch.setattr("epochal.snapshots.store._manifests", SizedCache(0))
    assert find_route(store, first, last) is None
    found = table_difference(SnapshotReader(store, first), SnapshotReader(store, last), None, "totals")
    assert (found.added, found.changed, found.deleted) == (3, 1, 0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("rows_at_once", "first_rows"), [(2_000_000, 4096), (7, 2), (2_000_000, 2)])
def test_scans_are_in_key_order(
    store: SnapshotStore, seed: int, rows_at_once: int, first_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans.forget()  # snapshots of other tests have the same names
    monkeypatch.setattr(scans, "ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(scans, "FIRST_ROWS", first_rows)
    chance = random.Random(seed)
    branch = Branch(store)
    any_epochs(branch, 20, chance)
    codec = KeyCodec(TOTALS.key_schema)
    for reference in branch.epochs[::6]:
        reader = SnapshotReader(store, reference)
        rows = branch.models[reference.key].get("totals", {})
        for prefix in ((), ("JFK",), ("nowhere",)):
            expected = sorted((key for key in rows if key[: len(prefix)] == prefix), key=codec.encode_one)
            for limit in (1, 2, 100):
                found: list[Key] = []
                after: bytes | None = None
                while True:
                    page = scan(reader, "totals", codec.encode_one(prefix), after, limit)
                    assert len(page.keys) <= limit
                    names = TOTALS.key_schema.names
                    found += [tuple(row[name] for name in names) for row in page.rows.to_pylist()]
                    if not page.more:
                        break
                    after = page.keys[-1]
                assert found == expected
