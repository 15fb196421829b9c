"""PostgreSQL as a sink under fault: drivers and tasks killed at every step, zombies, a server that dies.

One application writes in each epoch to three tables: rows and totals by ``dbms.sink``, rows again by
``dbms.two_phase_sink``. A reader watches all the time: it must never see half an epoch of the first two.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
import sqlalchemy as sa

import epochal.backends.dbms
import epochal.backends.postgresql_two_phase
from epochal.faults import Fault
from epochal.testing.drivers import DriverPlan, DriverProcess, SparkJvm
from epochal.testing.invariants import broken_lineage, orphans, unfinished_epochs
from epochal.testing.oracle import slices
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from tests.fault.conftest import ROWS_PER_FILE, FaultyApplication, stop_without_the_lock
from tests.fault.points import OF_THE_LOG, points_of
from tests.servers import or_skipped

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]
LONG = pytest.mark.long

PIPELINE = Path(__file__).with_name("dbms_application.py")
FILES_AHEAD = 3
ROWS, CHECKED, TOTALS = "rows_of_epochs", "checked_rows", "totals"


POINTS = sorted([*points_of(epochal.backends.dbms, epochal.backends.postgresql_two_phase), *OF_THE_LOG])
DRIVER_POINTS = [point for point in POINTS if not point.startswith("T")]
TASK_POINTS = [point for point in POINTS if point.startswith("T")]


class DatabaseApplication(FaultyApplication):
    """The application, its database, and what must be there in the end."""

    def __init__(self, folder: Path, jvm: SparkJvm | None, server: PostgresqlServer) -> None:
        super().__init__(folder, jvm, {"parallelism": 2})
        self.outputs = {}
        self.server = server
        self.url = sa.make_url(server.create_database())
        self.password = folder / "password"
        self.password.write_text(self.url.password or "")

    def start(
        self,
        faults: Sequence[Fault] = (),
        task_faults: Sequence[Fault] = (),
        epochs: int | None = None,
        jvm: SparkJvm | Literal["shared"] | None = "shared",
        parameters: Mapping[str, Any] | None = None,
        **configuration: Any,
    ) -> DriverProcess:
        chosen = self.jvm if jvm == "shared" else jvm
        if chosen is not None:
            chosen.end_context()
        self._starts += 1
        plain = self.url._replace(password=None).render_as_string()
        plan = DriverPlan(
            pipeline=PIPELINE,
            directory=self.folder / "run",
            parameters={"input": self.input, "url": plain, "password": self.password},
            configuration={**self.configuration, **configuration},
            epochs=epochs,
            faults=faults,
            task_faults=task_faults,
        )
        return DriverProcess(plan, self.folder / f"driver-{self._starts}.log", chosen)

    def connect(self) -> psycopg.Connection[Any]:
        url = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(url, autocommit=True)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(text.encode()).fetchall()

    def violations(self) -> list[str]:
        """Everything that is wrong, once it has come to rest."""
        history = self.history
        found = [*unfinished_epochs(history), *broken_lineage(history), *orphans(history)]
        events = [row for _, manifest in history.snapshots for row in slices(manifest)["events"]]
        wanted = Counter((row["event"], row["sensor"], row["value"]) for row in events)
        for table in (ROWS, CHECKED):
            there = Counter(self.query(f"SELECT event, sensor, value FROM {table}"))
            if there != wanted:
                found.append(f"{table}: {len(wanted - there)} rows missing, {len(there - wanted)} too many")
        totals = {
            sensor: (count, sum(row["value"] for row in events if row["sensor"] == sensor))
            for sensor, count in Counter(row["sensor"] for row in events).items()
        }
        shown = {sensor: (count, total) for sensor, count, total in self.query(f"SELECT * FROM {TOTALS}")}
        if shown != totals:
            found.append(f"{TOTALS}: {shown} instead of {totals}")
        found += [f"{gid} is still prepared" for (gid,) in self.query("SELECT gid FROM pg_prepared_xacts")]
        last = history.snapshots[-1][0].epoch
        for sink, epoch in self.query("SELECT sink, epoch FROM _epochal_fence"):
            if epoch != last:
                found.append(f"the fence of {sink} is at {epoch}, not at {last}")
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    """A server that may be stopped: not the one of the other tests."""
    yield from or_skipped(postgresql())


@pytest.fixture(scope="module")
def application(
    jvm: SparkJvm, server: PostgresqlServer, tmp_path_factory: pytest.TempPathFactory
) -> DatabaseApplication:
    return DatabaseApplication(tmp_path_factory.mktemp("application"), jvm, server)


@dataclass
class Reader:
    """Reads, again and again, and remembers whatever nobody should ever see."""

    application: DatabaseApplication
    halves: list[str] = field(default_factory=list)
    reads: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._ended.wait(0.02):
            try:
                with self.application.connect() as connection:
                    while not self._ended.wait(0.02):
                        self._look(connection)
            except psycopg.Error:
                continue  # the tables are not there yet, or the server is down

    def stop(self) -> None:
        self._ended.set()

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        (rows,) = connection.execute(f"SELECT count(*) FROM {ROWS}".encode()).fetchone() or (0,)
        (events,) = connection.execute(f"SELECT sum(events) FROM {TOTALS}".encode()).fetchone() or (0,)
        self.reads += 1
        if rows % ROWS_PER_FILE or (events or 0) % ROWS_PER_FILE:
            self.halves.append(f"{rows} rows, totals of {events}")


@pytest.fixture(scope="module", autouse=True)
def reader(application: DatabaseApplication) -> Iterator[Reader]:
    reader = Reader(application)
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    yield reader
    reader.stop()
    thread.join()


def feed(application: DatabaseApplication, ahead: int = FILES_AHEAD) -> None:
    application.feed(max(0, ahead - application.files_left))


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_the_driver_is_killed(application: DatabaseApplication, point: str) -> None:
    """Life after life of one application; each finds what the last one left."""
    feed(application)
    fault = application.fault(point)
    driver = application.start(faults=[fault], epochs=FILES_AHEAD)
    assert driver.wait() == -signal.SIGKILL, driver.log_end()
    assert application.fired(fault)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("R1.dbms.taken-over", marks=LONG),
        "E5.dbms.applied",
        pytest.param("E5.dbms.committed", marks=LONG),
        pytest.param("R1.postgresql.swept", marks=LONG),
    ],
)
def test_it_is_killed_again_while_it_recovers(application: DatabaseApplication, point: str) -> None:
    """Killed with its tables half committed, then again in recovery, where these commits are redone."""
    feed(application)
    for place in ("E5.postgresql.committed-one", point):
        fault = application.fault(place)
        driver = application.start(faults=[fault], epochs=FILES_AHEAD)
        assert driver.wait() == -signal.SIGKILL, driver.log_end()
        assert application.fired(fault)


def test_tasks_are_killed_at_every_step(application: DatabaseApplication) -> None:
    """One life, whose epochs lose a Python worker each; Spark runs the task again."""
    feed(application, len(TASK_POINTS) + FILES_AHEAD)
    ahead = application.files_left
    first = application.next_epoch + 1
    faults = [application.fault(point, "kill", first + number) for number, point in enumerate(TASK_POINTS)]
    driver = application.start(task_faults=faults, epochs=ahead, master="local[2,4]")
    assert driver.wait() == 0, driver.log_end()
    assert [fault.point for fault in faults if not application.fired(fault)] == []
    assert application.violations() == []


@pytest.mark.parametrize(
    "point",
    ["E5.dbms.applied", *(pytest.param(p, marks=LONG) for p in ("E5.postgresql.before-commit", "E5.dbms.committed"))],
)
def test_the_server_dies_during_a_commit(application: DatabaseApplication, point: str) -> None:
    """Stopped in PostgreSQL's immediate mode as one sink is in the middle of an epoch, and started again."""
    feed(application)
    ahead = application.files_left
    stop = application.fault(point, "stop", application.next_epoch + 1)
    driver = application.start(faults=[stop], epochs=ahead)
    driver.wait_until(lambda: application.fired(stop))
    driver.wait_until_stopped()
    application.server.stop_immediately()
    driver.send(signal.SIGCONT)
    application.server.start_again()
    assert driver.wait() == 0, driver.log_end()
    assert application.violations() == []


def test_the_server_dies_between_prepare_and_commit(application: DatabaseApplication) -> None:
    """The epoch is decided while no database is there; what was prepared outlives the server."""
    feed(application)
    ahead = application.files_left
    stop = application.fault("E4.before-manifest", "stop", application.next_epoch + 1)
    driver = application.start(faults=[stop], epochs=ahead)
    driver.wait_until(lambda: application.fired(stop))
    driver.wait_until_stopped()
    application.server.stop_immediately()
    driver.send(signal.SIGCONT)
    driver.wait_until(lambda: "cannot commit yet" in driver.log_end(100_000))
    application.server.start_again()
    assert driver.wait() == 0, driver.log_end()
    assert application.violations() == []


@pytest.fixture(scope="module")
def zombie_jvm() -> Iterator[SparkJvm]:
    """Of the zombies: their successors have the other one, at the same time."""
    with SparkJvm() as running:
        yield running


@pytest.mark.parametrize("point", ["E5.dbms.applied", pytest.param("E5.postgresql.before-commit", marks=LONG)])
def test_a_zombie_is_fenced(application: DatabaseApplication, zombie_jvm: SparkJvm, point: str) -> None:
    """Stopped within its transaction, which it would hold open for ever, and continued past its successor's end."""
    feed(application)
    pause = application.fault(point, "delay", application.next_epoch, seconds=5)
    zombie = application.start(faults=[pause], jvm=zombie_jvm)
    zombie.wait_until(lambda: application.fired(pause))
    stop_without_the_lock(zombie, application)
    decided = len(application.history.decided)
    successor = application.start(epochs=application.files_left)
    assert successor.wait() == 0, successor.log_end()
    assert application.violations() == []
    assert len(application.history.decided) > decided
    before = application.query(f"SELECT * FROM {ROWS}")

    zombie.send(signal.SIGCONT)
    assert zombie.wait() not in (0, -signal.SIGKILL)
    assert "Fenced" in zombie.log_end()
    assert application.query(f"SELECT * FROM {ROWS}") == before
    assert application.violations() == []


def test_in_the_end_all_is_there_once_and_nobody_ever_saw_half_an_epoch(
    application: DatabaseApplication, reader: Reader
) -> None:
    feed(application)
    application.finish()
    assert application.violations() == []
    assert reader.reads > 100
    assert reader.halves == []
