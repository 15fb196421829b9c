"""The application under fault: its input, its drivers, and what it has to be in the end."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import select

from epochal.contracts.catalog import DriverStatus, EpochRecord
from epochal.faults import Fault
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Execution
from epochal.service.catalog.standalone import standalone_epochs
from epochal.snapshots.store import SnapshotStore
from epochal.testing.drivers import DriverPlan, DriverProcess, SparkJvm
from epochal.testing.invariants import History
from epochal.testing.oracle import KeyedOracle, Row

PIPELINE = Path(__file__).with_name("application.py")
NAME = "faults"
SENSORS = 12
ROWS_PER_FILE = 12

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


@dataclass(frozen=True)
class Call:
    """A run of one subtask in one executor."""

    epoch: int
    subtask: int
    executor: int


class FaultyApplication:
    """One application over many lives of its driver."""

    oracles = ORACLES

    def __init__(self, folder: Path, jvm: SparkJvm | None, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self.jvm = jvm
        self.configuration = {**CONFIGURATION, **configuration}
        self.input = folder / "input"
        self.outputs = {"totals": folder / "output" / "totals", "streaks": folder / "output" / "streaks"}
        self.store = SnapshotStore(str(folder / "run" / "store"))
        self.catalog_url = f"sqlite:///{folder / 'run' / 'catalog.sqlite'}"
        self._chance = random.Random(7)
        self._files = 0
        self._starts = 0
        for directory in (self.input, folder / "flags", folder / "calls", folder / "run"):
            directory.mkdir(parents=True)

    def feed(self, files: int) -> None:
        """More input files, each an epoch's worth."""
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
    ) -> DriverProcess:
        """Start the next life of the driver; ``jvm`` ``None``: with a JVM of its own."""
        chosen = self.jvm if jvm == "shared" else jvm
        if chosen is not None:
            chosen.end_context()
        self._starts += 1
        given = {"input": self.input, "output": self.folder / "output", "calls": self.folder / "calls"}
        plan = DriverPlan(
            pipeline=PIPELINE,
            directory=self.folder / "run",
            parameters={**given, **(parameters or {})},
            configuration={**self.configuration, **configuration},
            epochs=epochs,
            faults=faults,
            task_faults=task_faults,
        )
        return DriverProcess(plan, self.folder / f"driver-{self._starts}.log", chosen)

    def fault(self, point: str, action: str = "kill", epoch: int | None = None, seconds: float = 0.0) -> Fault:
        """A fault that fires once; :meth:`fired` says whether it has."""
        return Fault(point, action, epoch, once=str(self._flag(point, action, epoch)), seconds=seconds)

    def fired(self, fault: Fault) -> bool:
        return fault.once is not None and Path(fault.once).exists()

    @property
    def epochs(self) -> list[EpochRecord]:
        return standalone_epochs(self.catalog_url, NAME)

    @property
    def status(self) -> DriverStatus:
        """What the driver said of itself last."""
        database = Database(self.catalog_url)
        with database.reading() as session:
            query = select(Execution.status).order_by(Execution.started_at.desc()).limit(1)
            status = session.scalar(query)
        database.close()
        return DriverStatus.model_validate(status or {"phase": "starting"})

    @property
    def catalog_is_free(self) -> bool:
        """Whether nobody is writing to the catalog's file."""
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
        """Input files that no decided epoch has taken."""
        snapshots = self.history.snapshots
        return self._files - (snapshots[-1][1].slices["events"].end["files"] if snapshots else 0)

    @property
    def calls(self) -> list[Call]:
        """Every run of a subtask of the process operator, also those that came to nothing."""
        names = (path.name.split("-") for path in (self.folder / "calls").iterdir())
        return [Call(int(epoch), int(subtask), int(executor)) for epoch, subtask, executor, _ in names]

    @property
    def history(self) -> History:
        return History(self.store, self.epochs, self.outputs)

    def finish(self, **arguments: Any) -> None:
        """A life without faults, to the end of the input, ended in order."""
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


def stop_without_the_lock(driver: DriverProcess, application: FaultyApplication) -> None:
    """SIGSTOP, but not while it writes to the catalog: SQLite would keep everybody else out until it goes on."""
    while True:
        driver.send(signal.SIGSTOP)
        driver.wait_until_stopped()
        if application.catalog_is_free:
            return
        driver.send(signal.SIGCONT)
        time.sleep(0.02)


NewApplication = Callable[..., FaultyApplication]


@pytest.fixture(scope="package")
def jvm() -> Iterator[SparkJvm]:
    """One JVM for all drivers of these tests that do not need their own."""
    with SparkJvm() as running:
        yield running


@pytest.fixture(scope="module")
def new_application(jvm: SparkJvm, tmp_path_factory: pytest.TempPathFactory) -> NewApplication:
    def make(**configuration: Any) -> FaultyApplication:
        return FaultyApplication(tmp_path_factory.mktemp("application"), jvm, configuration)

    return make
