"""A tree of snapshots written directly to a store, with a model in plain Python of the state of each."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import Clock, EpochConditions, Watermarks, microseconds
from epochal.contracts.identity import EpochKey
from epochal.contracts.source import Slice
from epochal.snapshots.compaction import compact
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.lineage import clock_of, read_chains
from epochal.snapshots.manifest import BaseFile, DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import Expiry, StateClock
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable
from epochal.testing.state_world import SMALL_CELLS
from tests.kit.manifests import plain_manifest

GROUPS = 16
TOTALS = StateTable(
    id="totals",
    operator="totals",
    kind=StateKind.AGGREGATE,
    key=(Column(name="city", type="string"), Column(name="day", type="int")),
    value=(Column(name="count", type="int"), Column(name="worst", type="double")),
)
VISITS = StateTable(
    id="visits.places",
    operator="visits",
    kind=StateKind.MAP,
    key=(Column(name="tail", type="string"),),
    sub_key=(Column(name="airport", type="string"),),
    value=(Column(name="late", type="bigint"),),
)

WINDOWS = StateTable(
    id="windows",
    operator="windows",
    kind=StateKind.AGGREGATE,
    key=(Column(name="city", type="string"),),
    time=Column(name="at", type="bigint"),
    value=(Column(name="count", type="int"),),
    expires=Expiry(clock="event", column="at", after=3),
)
SESSIONS = StateTable(
    id="visits.last",
    operator="windows",
    kind=StateKind.MAP,
    key=(Column(name="tail", type="string"),),
    sub_key=(Column(name="airport", type="string"),),
    value=(Column(name="late", type="bigint"), Column(name="_touched", type="bigint")),
    expires=Expiry(clock="processing", column="_touched", after=5),
)

Key = tuple[Any, ...]
"""Columns in the order of the address."""
Values = dict[str, Any] | None
Rows = dict[Key, dict[str, Any]]


@dataclass
class Branch:
    """Epochs of one branch; ``state`` is the model of its head, by table id."""

    store: SnapshotStore
    name: str = "main"
    application: str = "flights"
    tables: tuple[StateTable, ...] = (TOTALS, VISITS)
    parallelism: int = 2
    head: ManifestReference | None = None
    state: dict[str, Rows] = field(default_factory=dict)
    epochs: list[ManifestReference] = field(default_factory=list)
    models: dict[EpochKey, dict[str, Rows]] = field(default_factory=dict)
    bases: tuple[BaseFile, ...] = ()
    clock: StateClock | None = None
    """Clocks of the operators in the next epoch."""

    def epoch(self, *changes: tuple[StateTable, Key, Values]) -> ManifestReference:
        """Write an epoch with these puts and deletes that names the bases written since the previous epoch."""
        key = EpochKey(self.name, (self.head.epoch if self.head else 0) + 1)
        for table, full_key, values in changes:
            rows = self.state.setdefault(table.id, {})
            if values is None:
                rows.pop(full_key, None)
            else:
                rows[full_key] = values
        self._expire()
        manifest = plain_manifest(
            key.epoch,
            application=self.application,
            branch=self.name,
            parent=self.head,
            parallelism=self.parallelism,
            max_parallelism=GROUPS,
            slices={"in": Slice(start={"offset": key.epoch * 10}, end={"offset": key.epoch * 10 + 10}, rows=10)},
            tables=self.tables,
            deltas=tuple(self._deltas(key, changes)),
            bases=self.bases,
            conditions=self._conditions(),
            created_at=datetime(2013, 1, 1, 0, 0, key.epoch % 60, tzinfo=UTC),
        )
        self.bases = ()
        self.head = self.store.write_manifest(manifest)
        self.epochs.append(self.head)
        self.models[key] = deepcopy(self.state)
        return self.head

    def fork(self, name: str, at: ManifestReference | None = None, application: str | None = None) -> Branch:
        start = at or self.head
        assert start is not None
        return Branch(
            self.store,
            name,
            application or name,
            self.tables,
            self.parallelism,
            start,
            deepcopy(self.models[start.key]),
            models=self.models,
            clock=clock_of(self.store.read_manifest(start), self.tables[0].id) if self.clock is not None else None,
        )

    def compact(self) -> None:
        """Write bases at the head; the next epoch names them."""
        chains = read_chains(self.store, self.head, [table.id for table in self.tables])
        self.bases = tuple(
            base
            for table in self.tables
            for base in compact(self.store, table, chains[table.id], GROUPS, 2, SMALL_CELLS)
        )

    def _expire(self) -> None:
        for table in self.tables:
            if table.expires is None or self.clock is None:
                continue
            now = self.clock.event if table.expires.clock == "event" else self.clock.processing
            names = [column.name for column in table.address]
            for key, values in list(self.state.get(table.id, {}).items()):
                time = (dict(zip(names, key, strict=True)) | (values or {}))[table.expires.column]
                if isinstance(time, datetime):
                    time = microseconds(time if time.tzinfo else time.replace(tzinfo=UTC))
                if time is not None and time + table.expires.after <= now:
                    del self.state[table.id][key]

    def _conditions(self) -> EpochConditions | None:
        if self.clock is None:
            return None
        places = {table.operator: Watermarks(fire=self.clock.event) for table in self.tables}
        return EpochConditions(clock=Clock(epoch_time=self.clock.processing, places=places))

    def _deltas(self, at: EpochKey, changes: Iterable[tuple[StateTable, Key, Values]]) -> list[DeltaFile]:
        written = []
        for table in self.tables:
            last = {key: values for changed, key, values in changes if changed.id == table.id}
            if not last:
                continue
            names = [column.name for column in table.address]
            rows = [dict(zip(names, key, strict=True)) | (values or {}) for key, values in last.items()]
            columns = {
                column.name: [row.get(column.name) for row in rows] for column in (*table.full_key, *table.value)
            }
            owner = table.owner_schema
            keys = pa.table({name: columns[name] for name in owner.names}, schema=owner)
            groups = key_groups(keys, owner, GROUPS)
            operations = ["delete" if values is None else "put" for values in last.values()]
            all_changes = pa.table({"_kg": groups, "_op": operations, **columns}, schema=table.delta_schema)
            for subtask in range(self.parallelism):
                own = all_changes.filter(pa.array(groups % self.parallelism == subtask))
                if own.num_rows:
                    written.append(write_delta(self.store, sort_changes(table, own), at, subtask, self.parallelism))
        return written
