"""PostgreSQL as a sink under faults: drivers and tasks killed at every step, zombies, a server that dies.

One application writes in each epoch to three tables: rows and totals by ``dbms.sink``, rows again by
``dbms.two_phase_sink``. A concurrent reader must never see part of an epoch of the first two. Usual runs kill a driver
at one step of each kind; test_sinks_crash.py crashes the sinks alone at each.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

import epochal.backends.dbms
import epochal.backends.postgresql_two_phase
from epochal.testing.drivers import SparkJvm
from epochal.testing.invariants import broken_lineage, orphans, unfinished_epochs
from epochal.testing.oracle import slices
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from tests.kit.servers import or_skipped
from tests.kit.waiting import eventually
from tests.service.fault.faulty_application import (
    ROWS_PER_FILE,
    Drivers,
    FaultyApplication,
    check_that_a_zombie_changes_nothing,
)
from tests.service.fault.points import LOG_POINTS, in_every_run, points_of

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).with_name("dbms_application.py")
FILES_AHEAD = 3
PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
ROWS, CHECKED, TOTALS = "rows_of_epochs", "checked_rows", "totals"


POINTS = sorted([*points_of(epochal.backends.dbms, epochal.backends.postgresql_two_phase), *LOG_POINTS])
DRIVER_POINTS = [point for point in POINTS if not point.startswith("T")]
TASK_POINTS = [point for point in POINTS if point.startswith("T")]
ONE_OF_EACH_CLASS = ("E5.dbms.applied", "R1.dbms.taken-over", "E5.dbms.committed", "E5.postgresql.committed-one")
"""Rows are written but not committed; the predecessor is fenced; rows are committed but not recorded as such; one
sink of two has committed."""


class DatabaseApplication(FaultyApplication):
    """The application, its database, and checks of the database."""

    kind = "dbms"
    pipeline = PIPELINE

    def __init__(self, folder: Path, drivers: Drivers, server: PostgresqlServer) -> None:
        super().__init__(folder, drivers, {"parallelism": 2})
        self.outputs = {}
        self.server = server
        self.url = sa.make_url(server.create_database())
        self.password = folder / "password"
        self.password.write_text(self.url.password or "")

    @property
    def parameters(self) -> dict[str, Any]:
        url = self.url._replace(password=None).render_as_string()
        return {"input": self.input, "url": url, "password": self.password}

    def connect(self) -> psycopg.Connection[Any]:
        url = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(url, autocommit=True)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(text.encode()).fetchall()

    def violations(self) -> list[str]:
        """Return all violations after the end of the application."""
        history = self.history
        found = [*unfinished_epochs(history), *broken_lineage(history), *orphans(history)]
        events = [row for _, manifest in history.snapshots for row in slices(manifest)["events"]]
        expected = Counter((row["event"], row["sensor"], row["value"]) for row in events)
        for table in (ROWS, CHECKED):
            found_rows = Counter(self.query(f"SELECT event, sensor, value FROM {table}"))
            if found_rows != expected:
                found.append(
                    f"{table}: {len(expected - found_rows)} rows missing, {len(found_rows - expected)} too many"
                )
        totals = {
            sensor: (count, sum(row["value"] for row in events if row["sensor"] == sensor))
            for sensor, count in Counter(row["sensor"] for row in events).items()
        }
        shown = {sensor: (count, total) for sensor, count, total in self.query(f"SELECT * FROM {TOTALS}")}
        if shown != totals:
            found.append(f"{TOTALS}: {shown} instead of {totals}")
        found += [f"{gid} is still prepared" for (gid,) in self.query(PREPARED)]
        last = history.snapshots[-1][0].epoch
        for sink, epoch in self.query("SELECT sink, epoch FROM _epochal_fence"):
            if epoch != last:
                found.append(f"the fence of {sink} is at {epoch}, not at {last}")
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    """A server of this module, because tests stop it."""
    yield from or_skipped(postgresql())


@dataclass
class Reader:
    """Reads repeatedly, and records views of incomplete epochs."""

    application: DatabaseApplication
    incomplete: list[str] = field(default_factory=list)
    reads: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._ended.wait(0.02):
            try:
                with self.application.connect() as connection:
                    while not self._ended.wait(0.02):
                        self._read(connection)
            except psycopg.Error:
                continue  # the tables do not exist yet, or the server is down

    def stop(self) -> None:
        self._ended.set()

    def _read(self, connection: psycopg.Connection[Any]) -> None:
        (rows,) = connection.execute(f"SELECT count(*) FROM {ROWS}".encode()).fetchone() or (0,)
        (events,) = connection.execute(f"SELECT sum(events) FROM {TOTALS}".encode()).fetchone() or (0,)
        self.reads += 1
        if rows % ROWS_PER_FILE or (events or 0) % ROWS_PER_FILE:
            self.incomplete.append(f"{rows} rows, totals of {events}")


@pytest.fixture
def application(tiered_drivers: Drivers, server: PostgresqlServer, tmp_path: Path) -> DatabaseApplication:
    """An application after one epoch, with input for further epochs."""
    application = DatabaseApplication(tmp_path / "application", tiered_drivers, server)
    application.feed(1 + FILES_AHEAD)
    driver = application.start(epochs=1)
    assert driver.wait() == 0, driver.log_end()
    return application


@pytest.fixture(autouse=True)
def reader(request: pytest.FixtureRequest) -> Iterator[Reader | None]:
    """Read during the test, and check that no part of an epoch was visible."""
    if "application" not in request.fixturenames:
        yield None
        return
    reader = Reader(request.getfixturevalue("application"))
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    yield reader
    reader.stop()
    thread.join()
    assert reader.incomplete == []


def kill_at(application: DatabaseApplication, point: str) -> None:
    application.kill_at(application.fault(point), epochs=FILES_AHEAD)


def finish_and_check(application: DatabaseApplication) -> None:
    application.finish()
    assert application.files_left == 0
    assert application.violations() == []


@pytest.mark.long
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_killed_driver_leaves_a_correct_database(application: DatabaseApplication, point: str) -> None:
    kill_at(application, point)
    finish_and_check(application)


@pytest.mark.long  # test_kills.py and test_hdfs.py kill recoveries in usual runs
@pytest.mark.parametrize(
    "point",
    in_every_run(
        ["R1.postgresql.swept"], ["R1.dbms.taken-over", "E5.dbms.applied", "E5.dbms.committed", "R1.postgresql.swept"]
    ),
)
def test_driver_killed_repeatedly_leaves_a_correct_database(application: DatabaseApplication, point: str) -> None:
    """The driver is killed during commits, and again during recovery, which redoes them."""
    for place in (*ONE_OF_EACH_CLASS, point):
        kill_at(application, place)
    finish_and_check(application)


def test_killed_tasks_are_retried(application: DatabaseApplication) -> None:
    """One driver, each of whose epochs loses a task, which is retried."""
    application.feed(len(TASK_POINTS))
    first = application.next_epoch + 1
    faults = [application.fault(point, "kill", first + number) for number, point in enumerate(TASK_POINTS)]
    driver = application.start(task_faults=faults, epochs=application.files_left, master="local[2,4]")
    assert driver.wait() == 0, driver.log_end()
    assert [fault.point for fault in faults if not application.fired(fault)] == []
    assert application.violations() == []


@pytest.mark.parametrize(
    "point",
    in_every_run(["E5.dbms.applied"], ["E5.dbms.applied", "E5.postgresql.before-commit", "E5.dbms.committed"]),
)
def test_commit_survives_the_death_of_the_server(application: DatabaseApplication, point: str) -> None:
    """The server is stopped in immediate mode during the commit of one sink, and restarted."""
    stop = application.fault(point, "stop", application.next_epoch + 1)
    driver = application.start(faults=[stop], epochs=application.files_left, tolerable_failed_epochs=1000)
    driver.wait_until(lambda: application.fired(stop))
    driver.wait_until_stopped()
    application.server.stop_immediately()
    driver.send(signal.SIGCONT)
    application.server.start_again()
    assert driver.wait() == 0, driver.log_end()
    assert application.violations() == []


def test_prepared_transactions_survive_the_death_of_the_server(application: DatabaseApplication) -> None:
    """The epoch is decided while the server is down; prepared transactions survive its restart."""
    stop = application.fault("E4.before-manifest", "stop", application.next_epoch + 1)
    driver = application.start(faults=[stop], epochs=application.files_left, tolerable_failed_epochs=1000)
    driver.wait_until(lambda: application.fired(stop))
    driver.wait_until_stopped()
    application.server.stop_immediately()
    try:
        driver.send(signal.SIGCONT)
        driver.wait_until(lambda: "cannot commit yet" in driver.log_end(100_000))
    finally:
        application.server.start_again()
    assert driver.wait() == 0, driver.log_end()
    assert application.violations() == []


@pytest.mark.parametrize("point", in_every_run(["E5.dbms.applied"], ["E5.dbms.applied", "E5.postgresql.before-commit"]))
def test_zombie_is_fenced_in_the_database(
    application: DatabaseApplication, own_jvm: SparkJvm | None, point: str
) -> None:
    """The driver is paused in its transaction, and resumed after its successor's end."""
    check_that_a_zombie_changes_nothing(
        application, own_jvm, point, lambda: application.query(f"SELECT * FROM {ROWS}"), application.violations
    )


def test_readers_never_see_part_of_an_epoch(application: DatabaseApplication, reader: Reader) -> None:
    for _ in range(3):
        application.finish()
        application.feed(3)
    eventually(lambda: reader.reads > 20)


@pytest.mark.long
def test_driver_with_spark_is_killed_during_its_commits(
    drivers: Drivers, server: PostgresqlServer, tmp_path: Path
) -> None:
    application = DatabaseApplication(tmp_path / "application", drivers, server)
    application.feed(2)
    kill_at(application, "E5.postgresql.committed-one")
    finish_and_check(application)
