"""Branches of real snapshots, written without a catalog, and the rows that replicas have of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.service.runtime.replicas.replica import Replica
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.snapshots.compaction import compact
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.lineage import read_chains
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateTable
from tests.kit.manifests import plain_manifest

DELAYS = StateTable(
    id="delays",
    operator="delays",
    kind=StateKind.AGGREGATE,
    key=(Column(name="origin", type="string"), Column(name="destination", type="string")),
    value=(Column(name="flights", type="bigint"), Column(name="worst", type="double")),
)
Row = tuple[str, str, int | None, float | None]


@dataclass
class WrittenBranch:
    """Writes a branch of snapshots as the engine does, and stores the expected rows at each."""

    store: SnapshotStore
    name: str = "main"
    heads: list[ManifestReference] = field(default_factory=list)
    expected: dict[EpochKey, dict[tuple[str, str], tuple[Any, Any]]] = field(default_factory=dict)

    @property
    def head(self) -> ManifestReference:
        return self.heads[-1]

    def epoch(self, puts: Sequence[Row] = (), deletes: Sequence[tuple[str, str]] = (), bases: bool = False) -> None:
        parent = self.heads[-1] if self.heads else None
        key = EpochKey(self.name, parent.epoch + 1 if parent else 1)
        rows = [(origin, to, "put", flights, worst) for origin, to, flights, worst in puts]
        rows += [(origin, to, "delete", None, None) for origin, to in deletes]
        deltas = []
        for subtask in range(2):
            own = [row for row in rows if (len(row[0]) + len(row[1])) % 2 == subtask]
            columns: list[Any] = list(zip(*own, strict=True)) or [[]] * 5
            changes = pa.table(
                {"_kg": [subtask] * len(own), "_op": columns[2], "origin": columns[0], "destination": columns[1]}
                | {"flights": columns[3], "worst": columns[4]},
                schema=DELAYS.delta_schema,
            )
            deltas.append(write_delta(self.store, sort_changes(DELAYS, changes), key, subtask, 2))
        manifest = plain_manifest(
            key.epoch,
            application="flights",
            branch=self.name,
            parent=parent,
            parallelism=2,
            max_parallelism=128,
            tables=(DELAYS,),
            deltas=tuple(deltas),
            bases=self._bases(parent) if bases and parent else (),
        )
        self.heads.append(self.store.write_manifest(manifest))
        state = dict(self.expected[parent.key]) if parent else {}
        state.update({(origin, to): (flights, worst) for origin, to, flights, worst in puts})
        for pair in deletes:
            state.pop(pair, None)
        self.expected[key] = state

    def _bases(self, parent: ManifestReference) -> Any:
        return compact(self.store, DELAYS, read_chains(self.store, parent, ["delays"])["delays"], 128)


def held(replica: Replica | None) -> tuple[EpochKey | None, dict[tuple[str, str], tuple[Any, Any]]]:
    assert replica is not None
    at, rows = replica.scan(b"")
    format = RowFormat(DELAYS)
    keys = format._keys.decode([key for key, _ in rows]).to_pylist()
    values = [format._values.decode_one(value) for _, value in rows]
    return at, {
        (key["origin"], key["destination"]): (value["flights"], value["worst"])
        for key, value in zip(keys, values, strict=True)
    }
