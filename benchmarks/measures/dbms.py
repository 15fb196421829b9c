"""Rate of upserts into PostgreSQL, compared with COPY and one upsert by hand; and the commit of a small epoch.

Both alternate over the same rows in memory and are measured until the database has committed them. For the sink this
includes its write-ahead log and the fence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv

from benchmarks.result import Result, at_least, at_most, in_turns, number, percentile
from epochal.backends.dbms import DatabaseAddress, DbmsBackend, Writing
from epochal.contracts.backend import SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.secrets import secret
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql

ROWS, KEYS, BATCH_ROWS, TURNS = 300_000, 300_000, 10_000, 3
SMALL_EPOCHS, SMALL_ROWS, WARM = 60, 1_000, 10
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
TABLE = "CREATE TABLE {} (id bigint PRIMARY KEY, name text, amount double precision)"
STAGING = "CREATE UNLOGGED TABLE {} (id bigint, name text, amount double precision)"
UPSERT = """INSERT INTO bare SELECT * FROM {} ORDER BY id
ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name, amount = EXCLUDED.amount"""
CSV = pyarrow.csv.WriteOptions(include_header=False)


def run(folder: Path) -> list[Result]:
    with postgresql() as server:
        sink = Sink(server, folder)
        whole, commits, bare = list[float](), list[float](), list[float]()
        with psycopg.connect(server.url("postgres", "postgresql")) as session:
            session.execute(TABLE.format("bare").encode())
            session.execute(STAGING.format("staging").encode())
            session.commit()

            def ours(rows: Sequence[pa.RecordBatch]) -> None:
                prepare, commit = sink.epoch(rows)
                commits.append(commit)
                whole.append(prepare + commit)

            def theirs(rows: Sequence[pa.RecordBatch]) -> None:
                bare.append(seconds(lambda: copy_and_upsert(session, rows)))

            for turn in range(TURNS + 1):
                rows = batches(turn, ROWS, KEYS)
                for way in (ours, theirs)[:: -1 if turn % 2 else 1]:
                    way(rows)
        small = [sink.epoch(batches(turn, SMALL_ROWS, KEYS))[1] for turn in range(SMALL_EPOCHS)]
        sink.backend.close()
    # The first turn fills the tables, the others update the rows.
    commit_rate, whole_rate, bare_rate = (ROWS / percentile(taken[1:], 0.5) for taken in (commits, whole, bare))
    how = f"E5 only: fence, COPY, upsert; {ROWS:,} updates of {KEYS:,} keys in an epoch; p50 of {TURNS} turns"
    by_hand = "the same rows, Arrow to CSV; COPY into an unlogged staging table, one upsert in the order of the keys"
    return [
        at_least("DBMS sink, PostgreSQL upserts", commit_rate, 100_000, "rows/s", how, digits=0),
        number("DBMS sink, from the first row to the commit", whole_rate, "rows/s", "one task, no Spark", digits=0),
        number("bare COPY + upsert", bare_rate, "rows/s", by_hand, digits=0),
        in_turns("DBMS sink, from the first row / bare COPY + upsert", bare[1:], whole[1:], least=0.6),
        at_most(
            "DBMS sink, commit of a small epoch, p50",
            percentile([commit * 1000 for commit in small[WARM:]], 0.5),
            30,
            "ms",
            f"{SMALL_ROWS:,} rows; the database without fsync",
            digits=1,
        ),
    ]


class Sink:
    """``dbms.sink`` without Spark: the work of its one task and of the driver in an epoch."""

    def __init__(self, server: PostgresqlServer, folder: Path) -> None:
        (folder / "password").write_text(server.password)
        address = DatabaseAddress.parse(
            "bench", f"postgresql://epochal@127.0.0.1:{server.port}/postgres", secret(f"file:{folder / 'password'}"), {}
        )
        place = SinkPlace("out", SnapshotStore(str(folder / "store")))
        self.backend = DbmsBackend(place, address, Writing("ours", keys=("id",), create=True))
        self.backend.check(SCHEMA)
        self.backend.recover(self._scope(0))
        self._epoch = 0

    def epoch(self, rows: Sequence[pa.RecordBatch]) -> tuple[float, float]:
        """Run one epoch. Returns the seconds of T1 to T3 and of E5."""
        self._epoch += 1
        scope = self._scope(self._epoch)
        started = time.perf_counter()
        transaction = self.backend.start(TaskScope(scope, "out", 0))
        for batch in rows:
            transaction.write(batch)
        handle = transaction.pre_commit()
        prepared = time.perf_counter()
        self.backend.commit(scope, [handle])
        return prepared - started, time.perf_counter() - prepared

    def _scope(self, epoch: int) -> EpochScope:
        return EpochScope("bench", EpochKey("bench", epoch), 1, EpochKey("bench", epoch - 1) if epoch > 1 else None)


def copy_and_upsert(
    session: psycopg.Connection[tuple[object, ...]], rows: Sequence[pa.RecordBatch], staging: str = "staging"
) -> None:
    """The fastest program found without exactly-once delivery.

    An unlogged staging table that is truncated; COPY of one batch after the other, so that the server reads while
    the next one is encoded; one upsert in the order of the keys, which touches each page of the index once.
    """
    with session.cursor() as cursor:
        cursor.execute(f"TRUNCATE {staging}".encode())
        with cursor.copy(f"COPY {staging} FROM STDIN (FORMAT csv)".encode()) as copy:
            for batch in rows:
                buffer = BytesIO()
                pyarrow.csv.write_csv(batch, buffer, CSV)
                copy.write(buffer.getvalue())
        cursor.execute(UPSERT.format(staging).encode())
    session.commit()


def batches(seed: int, rows: int, keys: int) -> list[pa.RecordBatch]:
    """Rows of distinct keys in random order, as from Spark's tasks."""
    chance = np.random.default_rng(seed)
    ids = chance.permutation(keys)[:rows]
    table = pa.table(
        {"id": ids, "name": pa.array([f"customer {id} in turn {seed}" for id in ids]), "amount": chance.random(rows)},
        schema=SCHEMA,
    )
    found: list[pa.RecordBatch] = table.to_batches(max_chunksize=BATCH_ROWS)
    return found


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
