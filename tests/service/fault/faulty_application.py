"""The application under fault: its input, its drivers, and its expected final state."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import copy as copy_of
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from sqlalchemy import select

from epochal.contracts.catalog import DriverStatus, EpochRecord
from epochal.faults import Fault
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Execution
from epochal.service.catalog.standalone import standalone_epochs
from epochal.snapshots.store import SnapshotStore
from epochal.testing.drivers import (
    DriverPlan,
    DriverProcess,
    SparkJvm,
    WatchedProcess,
    planned,
    without_faults,
)
from epochal.testing.fork_server import ForkServer
from epochal.testing.invariants import History, wrongly_visible
from epochal.testing.oracle import KeyedOracle, Row
from tests.kit.catalogs import new_sqlite_catalog

PIPELINE = Path(__file__).with_name("application.py")
LOCAL_LIFE, TIME_LIFE = "tests.service.fault.local_life", "tests.service.fault.time_life"
NAME = "faults"
SENSORS = 12
ROWS_PER_FILE = 12
FILES_AHEAD = 8

CONFIGURATION: dict[str, Any] = {
    "parallelism": 2,
    "max_parallelism": 8,
    "state_backend": "lmdb",
    "epoch_interval_seconds": 0,
    "compact_after_epochs": 6,
    "master": "local[2]",
}


def totals_step(before: Row | None, rows: Sequence[Row]) -> tuple[Row, Sequence[Row]]:
    values = [row["value"] for row in rows]
    old = before or {"events": 0, "total": 0, "highest": max(values)}
    after = {
        "events": old["events"] + len(rows),
        "total": old["total"] + sum(values),
        "highest": max(old["highest"], *values),
    }
    return after, [{"sensor": rows[0]["sensor"], **after}]


def streaks_step(before: Row | None, rows: Sequence[Row]) -> tuple[Row, Sequence[Row]]:
    late, longest = (before["late"], before["longest"]) if before else (0, 0)
    output = []
    for row in rows:
        late = late + 1 if row["value"] > 50 else 0
        longest = max(longest, late)
        output.append({"event": row["event"], "sensor": row["sensor"], "late": late})
    return {"late": late, "longest": longest}, output


ORACLES = (
    KeyedOracle("totals", "events", "totals", ("sensor",), totals_step),
    KeyedOracle("streaks.state", "events", "streaks", ("sensor",), streaks_step, order_by=("event",)),
)


LOCAL_TABLES = {"totals": "totals.state"}
"""State tables whose names in an aggregate differ from those in the process that replaces it where there is no
Spark."""


@dataclass(frozen=True)
class Call:
    """A run of one subtask in one executor."""

    epoch: int
    subtask: int
    executor: int


@dataclass(frozen=True)
class Drivers:
    """The processes that start drivers.

        ``jvm`` ``None``: each driver has its own. ``server`` ``None``: each driver imports its modules. ``spark``
    False: the engine without Spark, which requires the server (see ``local_life.py``).
    """

    jvm: SparkJvm | None = None
    server: ForkServer | None = None
    spark: bool = True


class FaultyApplication:
    """One application and a sequence of driver processes, called lives."""

    kind = "files"
    pipeline = PIPELINE
    oracles: Sequence[KeyedOracle] = ORACLES

    def __init__(self, folder: Path, drivers: Drivers, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self.drivers = drivers
        self.configuration = {**CONFIGURATION, **configuration}
        if not drivers.spark:
            self.oracles = [replace(each, table=LOCAL_TABLES.get(each.table, each.table)) for each in self.oracles]
        self.input = folder / "input"
        self.outputs = {"totals": folder / "output" / "totals", "streaks": folder / "output" / "streaks"}
        self.store = SnapshotStore(str(folder / "run" / "store"))
        self.catalog_url = f"sqlite:///{folder / 'run' / 'catalog.sqlite'}"
        self._chance = random.Random(7)
        self._files = 0
        self._starts = 0
        for directory in (self.input, folder / "flags", folder / "calls", folder / "run"):
            directory.mkdir(parents=True, exist_ok=True)
        if not drivers.spark:
            new_sqlite_catalog(folder / "run" / "catalog.sqlite")

    def feed(self, files: int) -> None:
        """Add input files, each with the rows of one epoch."""
        for _ in range(files):
            first = self._files * ROWS_PER_FILE
            self.feed_rows([self._row(event) for event in range(first, first + ROWS_PER_FILE)])

    def feed_rows(self, rows: Sequence[Row]) -> None:
        path = self.input / f"events-{self._files:05}.json"
        hidden = path.with_name(f"_{path.name}")
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(path)
        self._files += 1

    def start(
        self,
        faults: Sequence[Fault] = (),
        task_faults: Sequence[Fault] = (),
        epochs: int | None = None,
        jvm: SparkJvm | Literal["shared"] | None = "shared",
        parameters: Mapping[str, Any] | None = None,
        **configuration: Any,
    ) -> WatchedProcess:
        """Start the next life of the driver. ``jvm`` ``None``: with its own JVM."""
        if not self.drivers.spark:
            settings, values = {**self.configuration, **configuration}, {**self.parameters, **(parameters or {})}
            return self._start_without_spark(faults, task_faults, epochs, settings, values)
        chosen = self.drivers.jvm if jvm == "shared" else jvm
        if chosen is not None:
            chosen.end_context()
        self._starts += 1
        plan = DriverPlan(
            pipeline=self.pipeline,
            directory=self.folder / "run",
            parameters={**self.parameters, **(parameters or {})},
            configuration={**self.configuration, **configuration},
            epochs=epochs,
            faults=faults,
            task_faults=task_faults,
        )
        return DriverProcess(plan, self.folder / f"driver-{self._starts}.log", chosen, self.drivers.server)

    def _start_without_spark(
        self,
        faults: Sequence[Fault],
        task_faults: Sequence[Fault],
        epochs: int | None,
        configuration: Mapping[str, Any],
        parameters: Mapping[str, Any],
    ) -> WatchedProcess:
        assert self.drivers.server is not None
        self._starts += 1
        life = {
            "kind": self.kind,
            "folder": self.folder / "run",
            "parameters": parameters,
            "configuration": configuration,
            "task_faults": [asdict(fault) for fault in task_faults],
            "epochs": epochs,
        }
        environment = without_faults(os.environ) | planned(faults)
        log = self.folder / f"driver-{self._starts}.log"
        arguments = [json.dumps(life, default=str)]
        return WatchedProcess(self.drivers.server.start(LOCAL_LIFE, arguments, environment, log), log)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the pipeline."""
        return {"input": self.input, "output": self.folder / "output", "calls": self.folder / "calls"}

    def fault(self, point: str, action: str = "kill", epoch: int | None = None, seconds: float = 0.0) -> Fault:
        """A fault that fires once; :meth:`fired` returns whether it has."""
        return Fault(point, action, epoch, once=str(self._flag(point, action, epoch)), seconds=seconds)

    def fired(self, fault: Fault) -> bool:
        return fault.once is not None and Path(fault.once).exists()

    @property
    def epochs(self) -> list[EpochRecord]:
        return standalone_epochs(self.catalog_url, NAME)

    @property
    def status(self) -> DriverStatus:
        """The last status that the driver reported."""
        database = Database(self.catalog_url)
        with database.reading() as session:
            query = select(Execution.status).order_by(Execution.started_at.desc()).limit(1)
            status = session.scalar(query)
        database.close()
        return DriverStatus.model_validate(status or {"phase": "starting"})

    @property
    def catalog_is_free(self) -> bool:
        """Check that no process is writing to the catalog's file."""
        with closing(sqlite3.connect(self.folder / "run" / "catalog.sqlite", timeout=0, isolation_level=None)) as file:
            try:
                file.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            file.execute("ROLLBACK")
            return True

    @property
    def next_epoch(self) -> int:
        return max((record.epoch for record in self.epochs), default=0) + 1

    @property
    def files_left(self) -> int:
        """Number of input files that no decided epoch has processed."""
        snapshots = self.history.snapshots
        return self._files - (snapshots[-1][1].slices["events"].end["files"] if snapshots else 0)

    @property
    def calls(self) -> list[Call]:
        """Every run of a subtask of the process operator, also without a committed result."""
        names = (path.name.split("-") for path in (self.folder / "calls").iterdir())
        return [Call(int(epoch), int(subtask), int(executor)) for epoch, subtask, executor, _ in names]

    @property
    def history(self) -> History:
        return History(self.store, self.epochs, self.outputs)

    def copy(self, folder: Path) -> Self:
        """A copy of the application in its current state in another folder. It reads the same input."""
        copy = copy_of(self)
        copy.folder = folder
        copy.outputs = {name: folder / "output" / name for name in self.outputs}
        copy.store = SnapshotStore(str(folder / "run" / "store"))
        copy.catalog_url = f"sqlite:///{folder / 'run' / 'catalog.sqlite'}"
        for name in ("run", "output"):
            if (self.folder / name).exists():
                shutil.copytree(self.folder / name, folder / name)
        for name in ("flags", "calls"):
            (folder / name).mkdir(parents=True)
        return copy

    def kill_at(self, fault: Fault, **arguments: Any) -> None:
        """Run a life that ends with this fault. Nothing undecided may be visible afterwards."""
        driver = self.start(faults=[*arguments.pop("before", ()), fault], **arguments)
        assert driver.wait() == -signal.SIGKILL, driver.log_end()
        assert self.fired(fault)
        assert wrongly_visible(self.history) == []

    def finish(self, **arguments: Any) -> None:
        """Run a life without faults to the end of the input, with an orderly end."""
        driver = self.start(epochs=self.files_left, **arguments)
        assert driver.wait() == 0, driver.log_end()

    def _flag(self, point: str, action: str, epoch: int | None) -> Path:
        return self.folder / "flags" / f"{self._starts}-{point}-{action}-{epoch}"

    def _row(self, event: int) -> Row:
        return {
            "event": event,
            "sensor": f"s{self._chance.randrange(SENSORS)}",
            "value": self._chance.randrange(100),
        }


NewApplication = Callable[..., FaultyApplication]
"""Creates an application; arguments override its configuration."""


def stop_without_the_lock(driver: WatchedProcess, application: FaultyApplication) -> None:
    """Send SIGSTOP while the driver does not write to the catalog: SQLite's lock would block all other writers."""
    while True:
        driver.send(signal.SIGSTOP)
        driver.wait_until_stopped()
        if application.catalog_is_free:
            return
        driver.send(signal.SIGCONT)
        time.sleep(0.02)


def check_that_a_zombie_changes_nothing(
    application: FaultyApplication,
    jvm: SparkJvm | None,
    point: str,
    shown: Callable[[], object],
    problems: Callable[[], list[str]],
) -> None:
    """Stop a driver at a point of its commits, and continue it after its successor has ended: it must be fenced.

        ``shown`` returns what readers see, which must not change; ``problems`` returns inconsistencies after the
    end. ``jvm``: the zombie's own, if there is Spark.
    """
    pause = stopping_fault(application, point, None, jvm)
    zombie = application.start(faults=[pause], jvm=jvm)
    wait_until_stopped_at(zombie, application, pause)
    decided = len(application.history.decided)
    application.feed(2)
    successor = application.start(epochs=application.files_left)
    assert successor.wait() == 0, successor.log_end()
    assert problems() == []
    assert len(application.history.decided) > decided
    before = shown()

    zombie.send(signal.SIGCONT)
    assert zombie.wait() not in (0, -signal.SIGKILL)
    assert "Fenced" in zombie.log_end()
    assert shown() == before
    assert problems() == []


def stopping_fault(application: FaultyApplication, point: str, epoch: int | None, jvm: SparkJvm | None) -> Fault:
    """A fault for :func:`wait_until_stopped_at`. With Spark, commits have their own thread, so another thread may
    hold the lock of the catalog."""
    if jvm is None:
        return application.fault(point, "stop", epoch)
    return application.fault(point, "delay", epoch, seconds=10)


def wait_until_stopped_at(driver: WatchedProcess, application: FaultyApplication, fault: Fault) -> None:
    """With Spark, commits sleep and the process is stopped from outside; otherwise it has stopped itself."""
    driver.wait_until(lambda: application.fired(fault))
    if fault.action == "delay":
        stop_without_the_lock(driver, application)
    driver.wait_until_stopped()
