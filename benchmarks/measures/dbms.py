"""How fast rows are upserted into PostgreSQL, beside a bare COPY and upsert of the same rows; and a small commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv

from benchmarks.result import Result, at_least, at_most, number, percentile
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
BARE = """CREATE TEMPORARY TABLE given ON COMMIT DROP AS SELECT * FROM bare WITH NO DATA"""
UPSERT = """INSERT INTO bare SELECT * FROM given
ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name, amount = EXCLUDED.amount"""


def run(folder: Path) -> list[Result]:
    with postgresql() as server:
        sink = Sink(server, folder)
        with psycopg.connect(server.url("postgres", "postgresql")) as session:
            session.execute(TABLE.format("bare"))
            session.commit()
            ours, bare = [], []
            for turn in range(TURNS + 1):
                rows = batches(turn, ROWS, KEYS)
                bare.append(seconds(lambda rows=rows: copy_and_upsert(session, rows)))  # type: ignore[misc]
                ours.append(seconds(lambda rows=rows: sink.epoch(rows)))  # type: ignore[misc]
        commits = [sink.epoch(batches(turn, SMALL_ROWS, KEYS)) for turn in range(SMALL_EPOCHS)]
        sink.backend.close()
    # The first turn fills the tables, the others update them.
    sink_rate, bare_rate = ROWS / percentile(ours[1:], 0.5), ROWS / percentile(bare[1:], 0.5)
    how = f"{ROWS:,} updates of {KEYS:,} keys in an epoch: log, fence, COPY, upsert; p50 of {TURNS} turns"
    return [
        at_least("DBMS sink, PostgreSQL upserts", sink_rate, 100_000, "rows/s", how, digits=0),
        number("bare COPY + upsert", bare_rate, "rows/s", "the same rows, Arrow to CSV, one session", digits=0),
        at_least("DBMS sink / bare COPY + upsert", sink_rate / bare_rate, 0.6, "x"),
        at_most(
            "DBMS sink, commit of a small epoch, p50",
            percentile([commit * 1000 for commit in commits[WARM:]], 0.5),
            30,
            "ms",
            f"{SMALL_ROWS:,} rows; the database without fsync",
            digits=1,
        ),
    ]


class Sink:
    """``dbms.sink`` without Spark: what its one task and the driver do in an epoch."""

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

    def epoch(self, rows: Sequence[pa.RecordBatch]) -> float:
        """One epoch from T1 to the end of E5; seconds of E5 alone."""
        self._epoch += 1
        scope = self._scope(self._epoch)
        transaction = self.backend.start(TaskScope(scope, "out", 0))
        for batch in rows:
            transaction.write(batch)
        handle = transaction.pre_commit()
        return seconds(lambda: self.backend.commit(scope, [handle]))

    def _scope(self, epoch: int) -> EpochScope:
        return EpochScope("bench", EpochKey("bench", epoch), 1, EpochKey("bench", epoch - 1) if epoch > 1 else None)


def copy_and_upsert(session: psycopg.Connection[tuple[object, ...]], rows: Sequence[pa.RecordBatch]) -> None:
    """What somebody would write by hand who wants it fast, and needs no exactly-once."""
    with session.cursor() as cursor:
        cursor.execute(BARE)
        buffer = BytesIO()
        pyarrow.csv.write_csv(pa.Table.from_batches(rows), buffer, pyarrow.csv.WriteOptions(include_header=False))
        with cursor.copy("COPY given FROM STDIN (FORMAT csv)") as copy:
            copy.write(buffer.getvalue())
        cursor.execute(UPSERT)
    session.commit()


def batches(seed: int, rows: int, keys: int) -> list[pa.RecordBatch]:
    """Rows of distinct keys in no order, as Spark's tasks bring them."""
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
