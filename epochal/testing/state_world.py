"""Fixture for the contract suite of state backends: a lineage of epochs over one operator's state tables."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from epochal.contracts.conditions import BEGINNING
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.state import StateBackend, StateTaskScope, StateTransaction
from epochal.snapshots.chain import Chain, Link
from epochal.snapshots.compaction import compact
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.lineage import EMPTY
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.merge_policy import CellSizes
from epochal.snapshots.packs import Pack, carried_by
from epochal.snapshots.store import SnapshotStore
from epochal.state.access import TableAccess
from epochal.state.expiry import Expiry, StateClock
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import subtask_of
from epochal.state.table import GROUP, Column, StateKind, StateScope, StateTable

OWNER, GROUPS = "counts", 16
SMALL_CELLS = CellSizes(
    whole=0, most=4 << 10, least=1, merged=1 << 40, depth=lambda sizes: int(sum(sizes)) % len(sizes)
)
"""Sizes with which a few rows make several cells, each with several runs; any number of the newest is merged."""
COUNTS = StateTable(
    id="counts",
    operator=OWNER,
    kind=StateKind.VALUE,
    key=(Column(name="word", type="string"), Column(name="day", type="date")),
    value=(Column(name="count", type="bigint"), Column(name="last", type="string")),
)
SEEN = StateTable(
    id="counts.seen",
    operator=OWNER,
    kind=StateKind.MAP,
    key=COUNTS.key,
    sub_key=(Column(name="place", type="binary"), Column(name="number", type="int")),
    value=(Column(name="times", type="int"),),
)
TABLES = (COUNTS, SEEN)
SHARED = StateTable(
    id="counts.shared",
    operator=OWNER,
    kind=StateKind.LIST,
    scope=StateScope.UNION,
    key=(GROUP,),
    sub_key=(Column(name="_index", type="bigint"),),
    value=(Column(name="element", type="string"),),
)
OWN = SHARED.model_copy(update={"id": "counts.own", "scope": StateScope.OPERATOR})
RULES = SHARED.model_copy(update={"id": "counts.rules", "scope": StateScope.BROADCAST})
PARTS = SHARED.model_copy(update={"id": "counts.parts", "scope": StateScope.PARTIAL})
SCOPED_TABLES = (COUNTS, SHARED, OWN, RULES, PARTS)
"""One state table of each scope."""
WINDOWS = COUNTS.model_copy(
    update={
        "id": "counts.windows",
        "time": Column(name="at", type="timestamp"),
        "expires": Expiry(clock="event", column="at", after=10),
    }
)
VISITS = SEEN.model_copy(
    update={
        "id": "counts.visits",
        "value": (*SEEN.value, Column(name="_touched", type="timestamp")),
        "expires": Expiry(clock="processing", column="_touched", after=7),
    }
)
TIMED_TABLES = (COUNTS, WINDOWS, VISITS)
"""A table without expiry, a time-ordered table that expires by event time, and a table that expires by a column."""

Row = dict[str, Any]
Change = Row
"""A full key and its values. A change without values is a delete."""

DAY = date(2013, 1, 1)


class StateHarness(ABC):
    """A store, initially empty, and backends that use it."""

    @property
    @abstractmethod
    def store(self) -> SnapshotStore:
        """The store to which every backend of this harness writes."""

    @abstractmethod
    def make(self) -> StateBackend:
        """Return a new instance of the backend for the operator ``counts``."""

    @abstractmethod
    def new_worker(self) -> None:
        """Drop everything that this process keeps in memory, as if Spark had started another Python worker."""

    @abstractmethod
    def new_machine(self) -> None:
        """Like :meth:`new_worker`, but on a machine without local state; only the store remains."""


def counted(*numbers: int, count: int = 1) -> list[Change]:
    """Return puts into ``counts``, one key per number. Key 13 has a null in one column, key 17 in all columns."""
    return [
        {
            "word": None if number in (13, 17) else f"w\0{number}",
            "day": None if number == 17 else DAY + timedelta(days=number % 3),
            "count": count,
            "last": f"é{number}",
        }
        for number in numbers
    ]


def uncounted(*numbers: int) -> list[Change]:
    """Return deletes of the same keys."""
    return [{name: change[name] for name in ("word", "day")} for change in counted(*numbers)]


def seen(number: int, *places: bytes, times: int | None = 1) -> list[Change]:
    """Return map state entries for the key of a number."""
    owner = uncounted(number)[0]
    return [{**owner, "place": place, "number": -7, "times": times} for place in places]


def unseen(number: int, *places: bytes) -> list[Change]:
    """Return deletes of the same entries."""
    return [{name: value for name, value in entry.items() if name != "times"} for entry in seen(number, *places)]


def elements(*places: tuple[int, int], element: str | None = "é") -> list[Change]:
    """Return list elements without a key, by key group and index. If ``element`` is ``None``, they are deletes."""
    value = {} if element is None else {"element": element}
    return [{"_group": group, "_index": index, **value} for group, index in places]


def windows(*places: tuple[int, int], count: int = 1) -> list[Change]:
    """Return puts into ``counts.windows``, by the number of the key and the time in microseconds."""
    return [{**counted(number, count=count)[0], "at": instant(at)} for number, at in places]


def unwindowed(*places: tuple[int, int]) -> list[Change]:
    """Return deletes of the same rows."""
    return [{name: row[name] for name in ("word", "day", "at")} for row in windows(*places)]


def visits(number: int, *places: bytes, touched: int | None) -> list[Change]:
    """Return map state entries that expire, for the key of a number."""
    return [{**entry, "_touched": None if touched is None else instant(touched)} for entry in seen(number, *places)]


def unvisited(number: int, *places: bytes) -> list[Change]:
    """Return deletes of the same entries."""
    return unseen(number, *places)


def instant(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def _key(row: Row, table: StateTable) -> tuple[Any, ...]:
    return tuple(row[column.name] for column in table.full_key)


class World:
    """The lineage: the published snapshots and the expected contents of each state table."""

    def __init__(self, harness: StateHarness, parallelism: int = 2, tables: tuple[StateTable, ...] = TABLES) -> None:
        self.harness = harness
        self.tables = tables
        self.parallelism = parallelism
        self.branch = "main"
        self.epoch = 0
        self.clock = StateClock(event=BEGINNING, processing=0)
        """The clock of the head, or of the next epoch after :meth:`advance`."""
        self.chains: dict[str, Chain] = {table.id: EMPTY for table in self.tables}
        self.expected: dict[str, dict[tuple[Any, ...], Row]] = {table.id: {} for table in self.tables}

    def scope(self, subtask: int, epoch: int | None = None, attempt: int = 1) -> StateTaskScope:
        """Return the scope of the epoch after the head."""
        key = EpochKey(self.branch, self.epoch + 1 if epoch is None else epoch)
        parent = self.chains[COUNTS.id].at
        epoch_scope = EpochScope("application", key, attempt, parent)
        return StateTaskScope(epoch_scope, OWNER, subtask, self.parallelism, GROUPS, self.tables, dict(self.chains))

    def start(self, subtask: int = 0, attempt: int = 1) -> StateTransaction:
        """Start a transaction in an executor's copy of a new backend."""
        return self.copied().start(self.scope(subtask, attempt=attempt))

    def copied(self) -> StateBackend:
        copy: StateBackend = pickle.loads(cloudpickle.dumps(self.harness.make()))  # type: ignore[no-untyped-call]
        return copy

    def pre_commit(self, changes: dict[str, list[Change]] | None = None, attempt: int = 1) -> list[Handle]:
        """Run the next epoch's tasks up to their handles."""
        handles = []
        for subtask in range(self.parallelism):
            transaction = self.start(subtask, attempt)
            self.stage(transaction, changes or {}, subtask)
            handle = transaction.pre_commit()
            handles.append(Handle.decode(handle.encode()).model_copy(update={"carried": handle.carried}))
        return handles

    def stage(self, transaction: StateTransaction, changes: dict[str, list[Change]], subtask: int) -> None:
        """Stage the changes that belong to the subtask."""
        for table in self.tables:
            rows = changes_of(table, changes.get(table.id, []))
            transaction.stage(table.id, _of_subtask(rows, subtask, self.parallelism))

    def publish(self, handles: Sequence[Handle], changes: dict[str, list[Change]] | None = None) -> None:
        """Publish the epoch (E4); it becomes the head. The driver writes the files that the handles carry."""
        backend, files = self.harness.make(), carried_by(handles)
        if files:
            pack = Pack.of(EpochKey(self.branch, self.epoch + 1), 1, files)
            self.harness.store.write(pack.path, pack.beginning)
            handles = [pack.placed(handle) for handle in handles]
        self._append([delta for handle in handles for delta in backend.deltas(handle)], changes or {})

    def _append(self, deltas: Sequence[DeltaFile], changes: dict[str, list[Change]]) -> None:
        self.epoch += 1
        for table in self.tables:
            chain = self.chains[table.id]
            link = Link(EpochKey(self.branch, self.epoch), _of(deltas, table))
            self.chains[table.id] = Chain(chain.base_at, chain.bases, (*chain.links, link), self.clock)
            rows = dict(self.expected[table.id])
            for change in changes.get(table.id, []):
                key = _key(change, table)
                if is_delete(change, table):
                    rows.pop(key, None)
                else:
                    rows[key] = change
            self.expected[table.id] = rows

    def run(self, **changes: list[Change]) -> list[Handle]:
        """Run one whole epoch. Arguments such as ``counts=..`` and ``seen=..`` name a table by the last part of its
        id."""
        named = _named(changes)
        handles = self.pre_commit(named)
        self.publish(handles, named)
        return handles

    def run_elsewhere(self, **changes: list[Change]) -> None:
        """Run one whole epoch on executors of other machines; the local store does not receive its changes."""
        named = _named(changes)
        key, deltas = EpochKey(self.branch, self.epoch + 1), []
        for table in self.tables:
            rows = changes_of(table, named.get(table.id, []))
            for subtask in range(self.parallelism):
                mine = _of_subtask(rows, subtask, self.parallelism)
                if mine.num_rows:
                    written = write_delta(self.harness.store, sort_changes(table, mine), key, subtask, self.parallelism)
                    deltas.append(written)
        self._append(deltas, named)

    def compact(self, sizes: CellSizes = SMALL_CELLS) -> None:
        """Compact (E7): write bases at the head and drop all earlier links."""
        for table in self.tables:
            chain = self.chains[table.id]
            bases = compact(self.harness.store, table, chain, GROUPS, self.parallelism, sizes)
            self.chains[table.id] = Chain(chain.at, bases, (), chain.clock)

    def fork(self, branch: str) -> World:
        """Fork a new branch from the head."""
        other = World(self.harness, self.parallelism, self.tables)
        other.branch, other.epoch = branch, self.epoch
        other.chains, other.expected = dict(self.chains), dict(self.expected)
        other.clock = self.clock
        return other

    def advance(self, *, event: int | None = None, processing: int | None = None) -> None:
        """Set the clock of the next epoch."""
        self.clock = StateClock(
            self.clock.event if event is None else event, self.clock.processing if processing is None else processing
        )

    def visible(self, table: StateTable) -> dict[tuple[Any, ...], Row]:
        """Return the rows expected at the head, without expired rows."""
        rows, expires, clock = self.expected[table.id], table.expires, self.chains[table.id].clock
        if expires is None or clock is None:
            return rows
        now = clock.event if expires.clock == "event" else clock.processing
        return {
            key: row
            for key, row in rows.items()
            if row[expires.column] is None
            or now == BEGINNING
            or (row[expires.column] - instant(0)) // timedelta(microseconds=1) + expires.after > now
        }

    def check(self) -> None:
        """Check that the next epoch's tasks see exactly the published rows."""
        for subtask in range(self.parallelism):
            transaction = self.start(subtask)
            check_view(self, transaction, subtask)
            transaction.discard()


def _named(changes: dict[str, list[Change]]) -> dict[str, list[Change]]:
    return {COUNTS.id if name == "counts" else f"counts.{name}": rows for name, rows in changes.items()}


def check_view(world: World, transaction: StateTransaction, subtask: int) -> None:
    """Check that the transaction sees exactly the unexpired rows of the world that its subtask reads.

    Look-ups and ranges are both checked.
    """
    for table in world.tables:
        rows = changes_of(table, list(world.visible(table).values()))
        groups = np.array(table.scope.groups_read(subtask, world.parallelism, GROUPS), np.int32)
        rows = rows.filter(pa.array(np.isin(rows.column("_kg").to_numpy(), groups)))
        view = transaction.view(table.id)
        found, values = TableAccess(table, view, GROUPS).get(rows)
        assert found.all(), f"{table.id} lacks {int((~found).sum())} rows of subtask {subtask}"
        assert values.to_pylist() == rows.select(values.column_names).to_pylist()
        stored = view.ranges(groups, open_bounds(len(groups)), open_bounds(len(groups)))
        encoded = KeyCodec(table.key_schema).encode(rows)
        in_order = sorted(zip(rows.column("_kg").to_pylist(), encoded, range(len(encoded)), strict=True))
        assert groups[stored.owner].tolist() == [group for group, _, _ in in_order], f"other rows of {table.id}"
        assert stored.keys.to_pylist() == [key for _, key, _ in in_order], f"other keys of {table.id}"
        assert stored.values.to_pylist() == [values.slice(row, 1).to_pylist()[0] for _, _, row in in_order]


def open_bounds(ranges: int) -> pa.BinaryArray:
    """Return unbounded limits for one side of the given number of ranges."""
    return pa.nulls(ranges, pa.binary())


def changes_of(table: StateTable, changes: Sequence[Change]) -> pa.Table:
    """Convert changes to the table that ``StateTransaction.stage`` accepts."""
    keys = pa.Table.from_pylist(
        [{name: row[name] for name in table.key_schema.names} for row in changes], table.key_schema
    )
    columns = {
        "_kg": table.key_groups(keys, GROUPS),
        "_op": pa.array(["delete" if is_delete(row, table) else "put" for row in changes], pa.string()),
        **{name: keys.column(name) for name in keys.column_names},
    }
    for field in table.value_schema:
        columns[field.name] = pa.array([row.get(field.name) for row in changes], field.type)
    return pa.table(columns)


def is_delete(change: Change, table: StateTable) -> bool:
    return not any(column.name in change for column in table.value)


def encoded_groups(table: StateTable, changes: Sequence[Change]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the key group of each change."""
    groups: np.ndarray[Any, np.dtype[np.int32]] = changes_of(table, changes).column("_kg").to_numpy()
    return groups


def _of_subtask(rows: pa.Table, subtask: int, parallelism: int) -> pa.Table:
    return rows.filter(pa.array(subtask_of(rows.column("_kg").to_numpy(), parallelism) == subtask))


def _of(deltas: Sequence[DeltaFile], table: StateTable) -> tuple[DeltaFile, ...]:
    return tuple(delta for delta in deltas if delta.table == table.id)
