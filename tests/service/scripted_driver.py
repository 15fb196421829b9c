"""A driver without Spark that uses the internal API as a real driver does. Its parameters select a fault.

``python scripted_driver.py``, orders on standard input; ``parameters.act``:

``run``      epochs without rows, until a stop is requested
``crash``    ends with exit code 7 after one log line, without reporting to the control plane
``fail``     reports ``parameters.failure`` and ends
``ignore-stop``  runs, and ignores requests to stop

``python scripted_driver.py --spare FILE``: a spare driver that starts no Spark. The Spark settings that it receives
select its behaviour: with ``{"spark.scenario": "ends"}`` it ends before it is ready, with ``"never ready"`` it never
becomes ready, otherwise it works.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

from epochal.contracts.catalog import Directive, DriverStatus, EpochCounts, Failure
from epochal.contracts.conditions import Clock, EpochConditions
from epochal.driver import spare
from epochal.driver.heartbeat import HeartbeatingCatalog
from epochal.driver.http_catalog import HttpCatalog
from epochal.driver.orders import SPARE, DriverOrders, ExitCode, SpareOrders
from epochal.errors import Fenced
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore

EPOCH_SECONDS = 0.15


class ScriptedDriver:
    def __init__(self, orders: DriverOrders) -> None:
        self._orders = orders
        http = HttpCatalog(orders.control_planes, orders.token, orders.execution, orders.attempt)
        self._catalog = HeartbeatingCatalog(
            http, lambda _error: os._exit(ExitCode.FENCED), interval_seconds=0.2, listen=http.listen
        )
        self._store = SnapshotStore(orders.store)
        self._point = self._catalog.begin_attempt()
        spare.ANNOUNCED.hit()
        self._head = self._point.head
        self._next = self._point.next_epoch
        self._catalog.start()

    def act(self) -> int:
        match self._orders.parameters["act"]:
            case "crash":
                print("about to crash", flush=True)
                return 7
            case "fail":
                self._catalog.finish(Failure.model_validate(self._orders.parameters["failure"]))
                return ExitCode.FAILED
            case act:
                return self._run(ignores_stop=act == "ignore-stop")

    def _run(self, ignores_stop: bool) -> int:
        for record in self._point.prepared:
            self._catalog.commit_epoch(record.epoch)
        while True:
            stop = False
            for directive in self._catalog.heartbeat(DriverStatus(phase="running", epoch=self._next - 1)):
                stop |= not ignores_stop and self._carry_out(directive)
            if stop:
                self._catalog.finish(None)
                return ExitCode.FINISHED
            self._epoch()
            time.sleep(EPOCH_SECONDS)

    def _carry_out(self, directive: Directive) -> bool:
        self._catalog.complete(directive.id, self._head)
        return directive.kind == "stop"

    def _epoch(self) -> None:
        number, parent = self._next, self._head.key if self._head else None
        self._next += 1
        self._catalog.open_epoch(number, parent)
        reference = self._store.write_manifest(
            Manifest(
                application=self._orders.application,
                branch=self._point.branch,
                epoch=number,
                parent=self._head,
                execution=self._orders.execution,
                attempt=self._orders.attempt,
                artifact=self._orders.artifact.sha256,
                parallelism=1,
                max_parallelism=1,
                conditions=EpochConditions(clock=Clock(epoch_time=0)),
                created_at=datetime.now(UTC),
            )
        )
        self._catalog.prepare_epoch(number, parent, reference, EpochCounts())
        self._catalog.commit_epoch(number)
        self._head = reference


def warm(orders: SpareOrders, is_asked: Callable[[], bool]) -> spare.Warmed:
    match orders.spark.get("spark.scenario"):
        case "ends":
            print("a spare that ends", flush=True)
            os._exit(9)
        case "never ready":
            while not is_asked():
                time.sleep(0.05)
    return spare.Warmed(lambda: None, lambda: None)


def received_orders() -> DriverOrders:
    if sys.argv[1] != SPARE:
        return DriverOrders.model_validate_json(sys.stdin.read())
    document = spare.Spare(warm).orders()
    if document is None:
        os._exit(0)
    orders = DriverOrders.model_validate_json(document)
    spare.become(orders)
    return orders


def main() -> int:
    try:
        return ScriptedDriver(received_orders()).act()
    except Fenced as error:
        print(f"fenced: {error}", flush=True)
        return ExitCode.FENCED


if __name__ == "__main__":
    # Exit without cleanup: a report that was not sent by now must not be sent.
    code = main()
    sys.stdout.flush()
    os._exit(code)
