"""Writes the fixture of `test_formats.py`: a small store, and a bundle of its newest snapshot.

    python -m tests.spark.formats.make FOLDER

`stored/` was written with format 1, the format of 0.1.0. When the format changes, a new folder is added, and this one
stays.

The store has aggregate, value, list and map state with deletes: deltas, bases of several runs, later deltas, a fork.
``state.json`` lists the snapshots and the rows of each.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from epochal.contracts.catalog import EpochCounts, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.snapshots.bundle_format import BundleBranch, BundleEpoch, BundleHeader, BundleOrigin, BundleVersion
from epochal.snapshots.bundle_writing import encoded_epochs, files_of, write_bundle
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, Quotient, StateKind, StateTable
from tests.unit.snapshot_tree import Branch, Key, Values

STORE, BUNDLE, STATE = "store", "bundle", "state.json"
MAIN, FORK = "flights-00000001", "forked-00000002"

DELAYS = StateTable(
    id="delays",
    operator="delays",
    kind=StateKind.AGGREGATE,
    key=(Column(name="city", type="string"), Column(name="day", type="date")),
    value=(
        Column(name="flights", type="bigint"),
        Column(name="worst", type="double"),
        Column(name="mean_sum", type="bigint"),
        Column(name="mean_count", type="bigint"),
    ),
    shown=(Quotient(name="mean", dividend="mean_sum", divisor="mean_count"),),
)
LAST = StateTable(
    id="planes.last",
    operator="planes",
    kind=StateKind.VALUE,
    key=(Column(name="tail", type="string"),),
    value=(
        Column(name="seen", type="timestamp"),
        Column(name="fare", type="decimal(10,2)"),
        Column(name="codes", type="array<int>"),
    ),
)
RECENT = StateTable(
    id="planes.recent",
    operator="planes",
    kind=StateKind.LIST,
    key=LAST.key,
    sub_key=(Column(name="_index", type="bigint"),),
    value=(Column(name="airport", type="string"),),
)
AIRPORTS = StateTable(
    id="planes.airports",
    operator="planes",
    kind=StateKind.MAP,
    key=LAST.key,
    sub_key=(Column(name="airport", type="string"),),
    value=(Column(name="times", type="int"),),
)
TABLES = (DELAYS, LAST, RECENT, AIRPORTS)

Change = tuple[StateTable, Key, Values]
_BEGINNING = datetime(2013, 1, 1, tzinfo=UTC)
_CODE = b'# {"sinks": {"out": "files:{out}"}}'
"""The stand-in builder of the service tests reads this line."""


def main(folder: Path) -> None:
    store = SnapshotStore(str(folder / STORE))
    trunk = Branch(store, MAIN, "flights", TABLES)
    trunk.epoch(*_changes(1, TABLES))
    trunk.epoch(*_changes(2, TABLES))
    trunk.compact()
    trunk.epoch(*_changes(3, (DELAYS, RECENT)))
    trunk.compact()
    fork = trunk.fork(FORK, application="forked")
    trunk.epoch(*_changes(4, (LAST, RECENT, AIRPORTS)))
    fork.epoch(*_changes(5, (DELAYS, AIRPORTS)))
    fork.epoch()
    snapshots = [*trunk.epochs, *fork.epochs]
    lines = [json.dumps(_described(trunk, each), default=str) for each in snapshots]
    (folder / STATE).write_text("[" + ",\n".join(lines) + "]\n")
    _write_bundle(folder, store, trunk.epochs[-1])


def rows_as_json(rows: dict[Key, dict[str, Any]]) -> list[Any]:
    """Keys and values as JSON, sorted."""
    plain = [[list(key), list(values.values())] for key, values in rows.items()]
    listed: list[Any] = json.loads(json.dumps(plain, default=str))
    return sorted(listed, key=json.dumps)


def _changes(number: int, tables: Collection[StateTable]) -> list[Change]:
    return [change for change in _all_changes(number) if change[0] in tables]


def _all_changes(number: int) -> Iterator[Change]:
    """Every epoch replaces some rows, adds some, and deletes some of earlier epochs."""
    for place in range(number % 2, 20, number):
        day = date(2013, 1, 1) + timedelta(days=place % 3)
        values = {"flights": number, "worst": place / 4, "mean_sum": place * number, "mean_count": number}
        yield DELAYS, (f"city {place}", day), None if place % 7 == number else values
    for place in range(0, 12, number):
        tail = f"N{place:03}é"
        seen = _BEGINNING + timedelta(hours=number, microseconds=place)
        last = {
            "seen": seen,
            "fare": Decimal(place * number * 25).scaleb(-2),
            "codes": [number, None] if place % 2 else None,
        }
        deleted = place % 5 == number
        yield LAST, (tail,), None if deleted else last
        if number == 1 or deleted:
            yield RECENT, (tail, 0), None if deleted and number > 1 else {"airport": f"A{place}"}
        yield RECENT, (tail, number), {"airport": None if place % 4 == 0 else f"B{number}"}
        yield AIRPORTS, (tail, f"A{number % 3}"), None if deleted and number > 2 else {"times": number}


def _described(branch: Branch, snapshot: ManifestReference) -> dict[str, Any]:
    tables = branch.models[snapshot.key]
    return {
        "snapshot": snapshot.model_dump(mode="json"),
        "tables": {table.id: rows_as_json(tables.get(table.id, {})) for table in TABLES},
    }


def _write_bundle(
    folder: Path, store: SnapshotStore, snapshot: ManifestReference, since: ManifestReference | None = None
) -> None:
    files = files_of(store, snapshot, since)
    manifests = [store.read_manifest(reference) for reference in files.manifests]
    epochs = encoded_epochs([_epoch(manifest) for manifest in manifests])
    artifact = folder / "flights.py"
    artifact.write_bytes(_CODE)
    sha256 = hashlib.sha256(_CODE).hexdigest()
    about = {"created_at": _BEGINNING, "created_by": "admin"}
    header = BundleHeader(
        made_by="0.1.0",
        origin=BundleOrigin(
            control_plane="cp-1",
            application="flights",
            branch=snapshot.branch,
            epoch=snapshot.epoch,
            exported_at=_BEGINNING,
            by="admin",
        ),
        snapshot=snapshot,
        since=since,
        version=1,
        applications={"app-1": "flights"},
        versions=(
            BundleVersion(
                application="app-1",
                number=1,
                artifact=sha256,
                filename=artifact.name,
                parameters={"out": "/data/flights"},
                configuration={},
                **about,
            ),
        ),
        branches=(BundleBranch(id=MAIN, application="app-1", kind="start", parent=None, message=None, **about),),
        epochs_sha256=hashlib.sha256(epochs).hexdigest(),
        packs=files.checksums_of_packs,
        members=1 + files.members,
        bytes=files.size(store) + len(_CODE),
    )
    with (folder / BUNDLE).open("wb") as target:
        for _ in write_bundle(target, store, header, epochs, files, {sha256: artifact}):
            pass
    artifact.unlink()


def _epoch(manifest: Manifest) -> BundleEpoch:
    parent = None if manifest.parent is None else EpochKey(manifest.parent.branch, manifest.parent.epoch)
    return BundleEpoch(
        branch=manifest.branch,
        epoch=manifest.epoch,
        attempt=manifest.attempt,
        parent=parent,
        version=1,
        counts=EpochCounts(),
        started_at=manifest.created_at,
        prepared_at=manifest.created_at,
        committed_at=manifest.created_at,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
