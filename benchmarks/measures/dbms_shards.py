"""Rate of upserts into PostgreSQL with two shards, compared with one shard and with two clients by hand.

All three alternate over the same rows in memory, and are measured until the database has committed them. Sinks run
without Spark: two tasks in separate processes write the log (T1 to T3), then this process commits (E5). The clients are
two processes with half of the keys each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import psycopg
import sqlalchemy as sa

from benchmarks.measures.dbms import STAGING, TABLE, copy_and_upsert
from benchmarks.measures.guarantees import TASKS, Sink, batches, prepare
from benchmarks.result import Result, in_turns, number, percentile
from epochal.connectors import dbms
from epochal.secrets import secret
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql

ROWS, TURNS = 300_000, 5


def run(folder: Path, turns: int = TURNS) -> list[Result]:
    with postgresql() as server, ExitStack() as stack:
        (folder / "password").write_text(server.password)
        one, two = (stack.enter_context(sink(server, shards, folder)) for shards in (1, 2))
        clients = stack.enter_context(Clients(server.create_database()))
        ones, twos, bare = list[tuple[float, float]](), list[tuple[float, float]](), list[float]()

        def with_one(turn: int) -> None:
            ones.append(one.epoch(turn, ROWS))

        def with_two(turn: int) -> None:
            twos.append(two.epoch(turn, ROWS))

        def by_hand(turn: int) -> None:
            bare.append(clients.epoch(turn))

        sides = [with_one, with_two, by_hand]
        for turn in range(turns + 1):
            for side in sides[turn % 3 :] + sides[: turn % 3]:
                side(turn)
    # The first turn fills the tables, the others update the rows.
    return results(ones[1:], twos[1:], bare[1:])


def results(
    ones: Sequence[tuple[float, float]], twos: Sequence[tuple[float, float]], bare: Sequence[float]
) -> list[Result]:
    """``ones``, ``twos``: those of the sinks. ``bare``: seconds of the two clients."""
    first, second = ([commit for _, commit in taken] for taken in (ones, twos))
    whole = [sum(taken) for taken in twos]
    one, two, clients = (ROWS / percentile(taken, 0.5) for taken in (first, second, bare))
    how = f"E5 only: fence, COPY, upsert; {ROWS:,} updates of {ROWS:,} keys in an epoch; p50 of {len(bare)} turns"
    return [
        number("DBMS sink with 2 shards, PostgreSQL upserts", two, "rows/s", how, digits=0),
        number("DBMS sink with 1 shard", one, "rows/s", "the same", digits=0),
        number("two bare clients, COPY + upsert", clients, "rows/s", "the same rows, half of the keys each", digits=0),
        in_turns("DBMS sink, 2 shards / 1 shard", first, second),
        in_turns("DBMS sink with 2 shards / two bare clients", bare, second, least=0.8),
        in_turns("DBMS sink with 2 shards, from the first row / two bare clients", bare, whole),
    ]


def sink(server: PostgresqlServer, shards: int, folder: Path) -> Sink:
    """A sink in a database of its own."""
    url = sa.make_url(server.create_database())._replace(password=None).render_as_string()
    password = secret(f"file:{folder / 'password'}")
    definition = dbms.sink(url, "ours", keys="id", create=True, shards=shards, password=password)
    return Sink(definition, "exactly_once", folder / f"{shards}")


class Clients:
    """Two processes that write by hand."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._processes = [ProcessPoolExecutor(1, get_context("spawn")) for _ in range(TASKS)]

    def __enter__(self) -> Clients:
        with psycopg.connect(self._url) as session:
            session.execute(TABLE.format("bare").encode())
            for client in range(TASKS):
                session.execute(STAGING.format(staging(client)).encode())
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes:
            process.shutdown()

    def epoch(self, turn: int) -> float:
        """Write the rows of an epoch. Returns the seconds until both clients have committed."""
        numbered = list(enumerate(self._processes))
        for ready in [process.submit(prepare, turn, client, ROWS) for client, process in numbered]:
            ready.result()
        started = time.perf_counter()
        for written in [process.submit(write, self._url, client, turn) for client, process in numbered]:
            written.result()
        return time.perf_counter() - started


def staging(client: int) -> str:
    return f"staging_{client}"


def write(url: str, client: int, turn: int) -> None:
    """Write a client's rows, in its own process."""
    copy_and_upsert(session(url), batches(turn, client, ROWS), staging(client))


@cache
def session(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url)
