"""A driver without Spark, with the real catalog client, heartbeats and files, and with a journal.

``parameters``: ``folder`` of the journal and the sink; ``pause`` between epochs in seconds. After epoch n, the value of
key ``all`` in the state table ``totals`` is n.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochal.contracts.catalog import Directive, DriverStatus, EpochCounts, Failure, ManifestReference
from epochal.contracts.conditions import Clock, EpochConditions
from epochal.contracts.identity import EpochKey
from epochal.driver.heartbeat import HeartbeatingCatalog
from epochal.driver.http_catalog import HttpCatalog
from epochal.driver.orders import DriverOrders, ExitCode
from epochal.errors import EpochalError, Fenced
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


class Journal:
    """Lines of JSON, one per event, written immediately by the drivers of an application in turn."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self._file = (folder / "journal").open("a")
        self._attempt = attempt

    def write(self, what: str, **more: Any) -> None:
        line = {"at": time.time(), "attempt": self._attempt, "what": what, **more}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class FakeDriver:
    def __init__(self, orders: DriverOrders) -> None:
        self._orders = orders
        self._folder = Path(str(orders.parameters["folder"]))
        self._pause = float(str(orders.parameters["pause"]))
        self._journal = Journal(self._folder, orders.attempt)
        self._journal.write("started", process=os.getpid())
        http = HttpCatalog(orders.control_planes, orders.token, orders.execution, orders.attempt)
        self._catalog = HeartbeatingCatalog(http, self._ended, listen=http.listen)
        self._store = SnapshotStore(orders.store)
        self._point = self._catalog.begin_attempt()
        code = http.artifact(orders.artifact.sha256)
        assert hashlib.sha256(code).hexdigest() == orders.artifact.sha256
        self._head = self._point.head
        self._next = self._point.next_epoch
        self._journal.write("begun", head=None if self._head is None else self._head.epoch)
        self._is_finishing = False
        self._catalog.start()

    def run(self) -> int:
        for started in self._point.started:
            self._catalog.abort_epoch(started.epoch, Failure(type="lost", message="its driver was lost"))
        for prepared in self._point.prepared:
            assert prepared.manifest is not None
            self._commit(prepared.manifest)
        while True:
            stop = False
            for directive in self._catalog.heartbeat(DriverStatus(phase="running", epoch=self._next - 1)):
                stop |= self._carry_out(directive)
            if stop:
                self._is_finishing = True
                self._catalog.finish(None)
                return ExitCode.FINISHED
            self._epoch()
            time.sleep(self._pause)

    def _carry_out(self, directive: Directive) -> bool:
        self._catalog.complete(directive.id, self._head)
        self._journal.write("directive", id=directive.id, kind=directive.kind)
        return directive.kind == "stop"

    def _epoch(self) -> None:
        number, parent = self._next, self._head.key if self._head else None
        self._next += 1
        self._catalog.open_epoch(number, parent)
        manifest = Manifest(
            application=self._orders.application,
            branch=self._point.branch,
            epoch=number,
            parent=self._head,
            execution=self._orders.execution,
            attempt=self._orders.attempt,
            artifact=self._orders.artifact.sha256,
            parallelism=1,
            max_parallelism=GROUPS,
            tables=(TOTALS,),
            deltas=(self._delta(number),),
            conditions=EpochConditions(clock=Clock(epoch_time=0)),
            created_at=datetime.now(UTC),
        )
        reference = self._store.write_manifest(manifest)
        self._catalog.prepare_epoch(number, parent, reference, EpochCounts(rows_in=1))
        self._journal.write("prepared", epoch=number, sha256=reference.sha256)
        self._commit(reference)
        self._head = reference

    def _commit(self, reference: ManifestReference) -> None:
        """Write the file of an epoch; a repeated commit must write the same content."""
        file = self._folder / "sink" / str(reference.epoch)
        if file.exists() and file.read_text() != reference.sha256:
            self._journal.write("other content", epoch=reference.epoch)
        file.write_text(reference.sha256)
        self._catalog.commit_epoch(reference.epoch)
        self._journal.write("committed", epoch=reference.epoch)

    def _delta(self, epoch: int) -> DeltaFile:
        names = ["all", f"last digit {epoch % 10}"]
        keys = pa.table({"name": names}, schema=TOTALS.key_schema)
        values = {"_kg": TOTALS.key_groups(keys, GROUPS), "_op": ["put", "put"], "name": names, "total": [epoch, epoch]}
        changes = sort_changes(TOTALS, pa.table(values, schema=TOTALS.delta_schema))
        return write_delta(self._store, changes, EpochKey(self._point.branch, epoch), 0, 1)

    def _ended(self, error: EpochalError) -> None:
        if self._is_finishing:
            return  # heartbeats after the end are refused
        self._journal.write("ended", error=error.slug, message=error.message)
        os._exit(ExitCode.FENCED)


def main() -> None:
    # Exit without an orderly end, which could still send calls.
    try:
        code = FakeDriver(DriverOrders.model_validate_json(sys.stdin.read())).run()
    except Fenced as error:
        print(f"fenced: {error}", flush=True)
        code = ExitCode.FENCED
    sys.stdout.flush()
    os._exit(code)
