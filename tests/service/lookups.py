"""Shared by the tests of look-ups: a driver that writes real state, and short functions for requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochal.contracts.catalog import EpochCounts, ManifestReference
from epochal.contracts.conditions import EpochConditions
from epochal.contracts.identity import EpochKey
from epochal.contracts.source import Slice
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateScope, StateTable
from tests.kit.manifests import plain_manifest
from tests.kit.packed_files import EpochFiles

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def columns(text: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type) for name, type in (part.split() for part in text.split(", ") if part))


def table(
    id: str,
    kind: StateKind,
    key: str,
    value: str,
    sub_key: str = "",
    queryable: bool = True,
    scope: StateScope = StateScope.KEYED,
    reconcile: Any = None,
) -> StateTable:
    return StateTable(
        id=id,
        operator=id.partition(".")[0],
        kind=kind,
        scope=scope,
        key=columns(key),
        sub_key=columns(sub_key),
        value=columns(value),
        queryable=queryable,
        reconcile=reconcile,
    )


DELAYS = table("delays", StateKind.AGGREGATE, "origin string, destination string", "flights bigint, worst double")
VISITS = table("visits.places", StateKind.MAP, "tail string", "late int", sub_key="airport string")
HIDDEN = table("hidden", StateKind.VALUE, "k int", "v int", queryable=False)
TYPES = table(
    "types",
    StateKind.VALUE,
    "i int, b boolean, d date, m decimal(6,2), t timestamp, y binary",
    "d date, m decimal(6,2), t timestamp, n timestamp_ntz, y binary, f float, s smallint",
)
MAX_PARALLELISM = 128


@dataclass
class StateDriver:
    """A driver that writes state as the engine does: deltas by subtask, a manifest, then the catalog's steps."""

    plane: Plane
    application: str = "flights"
    tables: tuple[StateTable, ...] = (DELAYS, VISITS, HIDDEN)
    head: ManifestReference | None = None
    pending: list[int] = field(default_factory=list)
    conditions: EpochConditions | None = None
    """Conditions of the next epochs."""
    packs: bool = False
    """The deltas of every subtask 0 are in packs."""

    def __post_init__(self) -> None:
        self.driver = self.plane.driver(self.application)
        self.driver.running()
        self.head = self.driver.point.head
        self.next_epoch = self.driver.point.next_epoch
        self.store = SnapshotStore(self.plane.settings.store_url)

    def prepare(self, *changes: tuple[StateTable, list[dict[str, Any]]], **fields: Any) -> int:
        """Rows are puts; rows with only key columns are deletes. ``fields`` override fields of the manifest."""
        number, branch = self.next_epoch, self.driver.point.branch
        key, parent = EpochKey(branch, number), self.head.key if self.head else None
        small = cycle((self.packs, False))
        files = EpochFiles(self.store, lambda: next(small))
        self.driver.catalog.open_epoch(number, parent)
        usual: dict[str, Any] = {
            "application": self.application,
            "branch": branch,
            "parent": self.head,
            "execution": self.driver.execution,
            "attempt": self.driver.attempt,
            "parameters": {"threshold": 15},
            "parallelism": 2,
            "max_parallelism": MAX_PARALLELISM,
            "slices": {"flights": _slice(number)},
            "tables": self.tables,
            "deltas": tuple(delta for change in changes for delta in self._deltas(files, key, *change)),
            "conditions": self.conditions,
        }
        manifest = plain_manifest(number, **{**usual, **fields})
        reference = files.write_manifest(manifest)
        self.driver.catalog.prepare_epoch(number, parent, reference, EpochCounts())
        self.head, self.next_epoch = reference, number + 1
        self.pending.append(number)
        return number

    def commit(self) -> None:
        for number in self.pending:
            self.driver.catalog.commit_epoch(number)
        self.pending.clear()

    def epoch(self, *changes: tuple[StateTable, list[dict[str, Any]]], **fields: Any) -> int:
        number = self.prepare(*changes, **fields)
        self.commit()
        return number

    def savepoint(self, name: str) -> None:
        self.plane.post(f"/v1/applications/{self.application}/savepoints", name=name)
        for directive in self.driver.running():
            self.driver.catalog.complete(directive.id, self.head)

    def _deltas(
        self, files: EpochFiles, at: EpochKey, table: StateTable, rows: list[dict[str, Any]]
    ) -> Iterator[DeltaFile]:
        names = [column.name for column in (*table.full_key, *table.value)]
        values = {name: [row.get(name) for row in rows] for name in names}
        keys = pa.table({column.name: values[column.name] for column in table.full_key}, schema=table.key_schema)
        groups = table.key_groups(keys, MAX_PARALLELISM)
        put = {column.name for column in table.value}
        operations = ["put" if put & row.keys() else "delete" for row in rows]
        changes = pa.table({"_kg": groups, "_op": operations, **values}, schema=table.delta_schema)
        for subtask in range(2):
            yield write_delta(files, sort_changes(table, changes.filter(groups % 2 == subtask)), at, subtask, 2)


def _slice(epoch: int) -> Slice:
    return Slice(start={"files": epoch - 1}, end={"files": epoch}, detail={"files": [f"{epoch}.json"]}, rows=3)


def route(origin: str, destination: str, flights: int | None = None, worst: float | None = None) -> dict[str, Any]:
    key = {"origin": origin, "destination": destination}
    return key if flights is None else key | {"flights": flights, "worst": worst}


def place(tail: str, airport: str, late: int | None = None) -> dict[str, Any]:
    return {"tail": tail, "airport": airport} | ({} if late is None else {"late": late})


KEYS = "/v1/applications/flights/state/delays/keys/"


def get(plane: Plane, key: str, **query: Any) -> Any:
    return plane.get(KEYS + key, **query)


def refused(plane: Plane, path: str, **query: Any) -> tuple[int, str, str]:
    answer = plane.client.get(path, params=query or None)
    problem = answer.json()
    return answer.status_code, problem["type"].removeprefix("urn:epochal:problem:"), problem["detail"]
