"""Drivers without Spark, many in one process: the real client, heartbeats and requests for directives, and an epoch of
two rows each second with real files.

    python -m benchmarks.scripted_drivers

Reads one line of JSON, :class:`Orders`, prints one, :class:`Answer`, and sends heartbeats until its input ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pydantic import BaseModel

from epochal.contracts.catalog import Directive, DriverStatus, EpochCounts, ManifestReference
from epochal.contracts.conditions import Clock, EpochConditions
from epochal.contracts.identity import EpochKey
from epochal.driver.heartbeat import HeartbeatingCatalog
from epochal.driver.http_catalog import HttpCatalog
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.manifest import DeltaFile, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column, StateKind, StateTable

TOTALS = StateTable(
    id="totals",
    operator="totals",
    kind=StateKind.AGGREGATE,
    key=(Column(name="name", type="string"),),
    value=(Column(name="total", type="bigint"),),
)
GROUPS = 8
INTERVAL_SECONDS = 1.0


class Line(BaseModel):
    """The snapshots of one application, from the first one on."""

    application: str
    branch: str
    execution: str
    token: str


class Orders(BaseModel):
    """``seconds`` from ``begin`` on (Unix time) are measured; the time before is for warming up."""

    control_planes: list[str]
    store: str
    artifact: str
    lines: list[Line]
    begin: float
    seconds: float


class Answer(BaseModel):
    """``committed_after``: seconds from the due time of each epoch to its commit. The other lists: seconds of calls."""

    committed_after: list[float] = []
    calls: list[float] = []
    heartbeats: list[float] = []
    ended: list[str] = []


class _TimedCatalog(HttpCatalog):
    """Records the duration of heartbeats."""

    heartbeats: list[float]

    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        began = time.perf_counter()
        directives = super().heartbeat(status)
        self.heartbeats.append(time.perf_counter() - began)
        return directives


class ScriptedDriver:
    def __init__(self, orders: Orders, line: Line, place: float) -> None:
        """``place``: offset of its epochs within a second."""
        self._orders, self._line = orders, line
        self._due = time.time() + place
        self._store = SnapshotStore(orders.store)
        self._answer = Answer()
        self._http = _TimedCatalog(orders.control_planes, line.token, line.execution, 1)
        self._http.heartbeats = self._answer.heartbeats
        self._catalog = HeartbeatingCatalog(
            self._http, lambda error: self._answer.ended.append(str(error)), listen=self._http.listen
        )
        self._thread = threading.Thread(target=self._run, name=line.application)
        self._thread.start()

    def end(self) -> Answer:
        self._thread.join()
        return self._answer

    def _run(self) -> None:
        head = self._catalog.begin_attempt().head
        assert head is not None
        self._catalog.start()
        until = self._orders.begin + self._orders.seconds
        while self._due < until:
            time.sleep(max(0.0, self._due - time.time()))
            self._catalog.heartbeat(DriverStatus(phase="running", epoch=head.epoch))
            head, calls = self._epoch(head)
            if self._due >= self._orders.begin:
                self._answer.committed_after.append(time.time() - self._due)
                self._answer.calls += calls
            late = max(0.0, time.time() - self._due)
            self._due += INTERVAL_SECONDS * (1 + late // INTERVAL_SECONDS)  # missed epochs are not made up for

    def _epoch(self, parent: ManifestReference) -> tuple[ManifestReference, list[float]]:
        """Write and commit an epoch. Returns its reference and the seconds of each call."""
        number, calls = parent.epoch + 1, []
        began = time.perf_counter()
        self._catalog.open_epoch(number, parent.key)
        calls.append(time.perf_counter() - began)
        reference = write_epoch(self._store, self._line, self._orders.artifact, number, parent)
        began = time.perf_counter()
        self._catalog.prepare_epoch(number, parent.key, reference, EpochCounts(rows_in=2))
        calls.append(time.perf_counter() - began)
        began = time.perf_counter()
        self._catalog.commit_epoch(number)
        calls.append(time.perf_counter() - began)
        return reference, calls


def write_epoch(
    store: SnapshotStore,
    line: Line,
    artifact: str,
    number: int,
    parent: ManifestReference | None,
) -> ManifestReference:
    """Write a snapshot of two rows."""
    manifest = Manifest(
        application=line.application,
        branch=line.branch,
        epoch=number,
        parent=parent,
        execution=line.execution,
        attempt=1,
        artifact=artifact,
        parallelism=1,
        max_parallelism=GROUPS,
        tables=(TOTALS,),
        deltas=(_delta(store, EpochKey(line.branch, number)),),
        conditions=EpochConditions(clock=Clock(epoch_time=0)),
        created_at=datetime.now(UTC),
    )
    return store.write_manifest(manifest)


def _delta(store: SnapshotStore, key: EpochKey) -> DeltaFile:
    names = ["all", f"last digit {key.epoch % 10}"]
    keys = pa.table({"name": names}, schema=TOTALS.key_schema)
    values = {"_kg": TOTALS.key_groups(keys, GROUPS), "_op": ["put"] * 2, "name": names, "total": [key.epoch] * 2}
    return write_delta(store, sort_changes(TOTALS, pa.table(values, schema=TOTALS.delta_schema)), key, 0, 1)


def main() -> None:
    orders = Orders.model_validate_json(sys.stdin.readline())
    drivers = [
        ScriptedDriver(orders, line, place / len(orders.lines) * INTERVAL_SECONDS)
        for place, line in enumerate(orders.lines)
    ]
    answer = Answer()
    for found in (driver.end() for driver in drivers):
        answer.committed_after += found.committed_after
        answer.calls += found.calls
        answer.heartbeats += found.heartbeats
        answer.ended += found.ended
    print(answer.model_dump_json(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
