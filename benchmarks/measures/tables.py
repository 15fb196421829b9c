"""The Delta and Iceberg sinks compared with bare Parquet files and one commit by the library; and small commits."""

from __future__ import annotations

import itertools
import json
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction

from benchmarks.result import Result, at_most, in_turns, number, percentile
from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.backends.file_formats import ParquetWriter
from epochal.backends.iceberg.address import IcebergAddress
from epochal.backends.iceberg.sink import IcebergSink
from epochal.backends.tables.sink import TableSink
from epochal.contracts.backend import Buffering, DecidedEpoch, SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.snapshots.store import SnapshotStore

ROWS, BATCH_ROWS, COLUMNS, TURNS = 1_000_000, 10_000, 8, 4
SMALL_ROWS, SMALL_EPOCHS, LAST = 1_000, 1_000, 100
UPSERT_TABLE, UPSERTS, UPSERT_TURNS = 10_000_000, 100_000, 2
GIB = 1 << 30


def run(folder: Path) -> list[Result]:
    return [*appends(folder / "appends"), *small_commits(folder / "small"), *upserts(folder / "upserts")]


class Sink:
    """A sink without Spark: the work of one task and of the driver in an epoch."""

    def __init__(self, backend: TableSink, schema: pa.Schema) -> None:
        self.backend = backend
        backend.check(schema)
        backend.recover(_scope(0))
        self._epoch = 0

    def epoch(self, rows: Sequence[pa.RecordBatch]) -> float:
        """Run one epoch, T1 to E5. Returns the seconds of E5."""
        self._epoch += 1
        scope = _scope(self._epoch)
        transaction = self.backend.start(TaskScope(scope, "out", 0))
        for batch in rows:
            transaction.write(batch)
        decided = DecidedEpoch(scope, (transaction.pre_commit(),), self._epoch - 1 or None)
        return seconds(lambda: self.backend.commit_decided([decided]))


def appends(folder: Path) -> list[Result]:
    rows = narrow(ROWS)
    found = []
    for name, make, bare in (("Delta", delta, BareDelta), ("Iceberg", iceberg, BareIceberg)):
        by_hand = bare(folder / f"{name}-bare", rows[0].schema)
        for limit, collects in ((0.85, False), (0.5, True)):
            sink = Sink(make(folder / f"{name}-{collects}", collects), rows[0].schema)
            ours, theirs = in_turn(lambda: sink.epoch(rows), lambda: by_hand.append(rows))  # noqa: B023
            title = f"{name} sink, collecting" if collects else f"{name} sink"
            how = f"{ROWS:,} rows of {COLUMNS} columns an epoch, one task, no Spark; p50 of {TURNS} turns"
            found += [
                number(title, ROWS / percentile(ours, 0.5), "rows/s", how, digits=0),
                in_turns(f"{title} / Parquet and one commit by hand", theirs, ours, least=limit),
            ]
    return found


def small_commits(folder: Path) -> list[Result]:
    rows = narrow(SMALL_ROWS)
    found = []
    for name, make, limit in (("Delta", delta, 100), ("Iceberg", iceberg, 300)):
        sink = Sink(make(folder / name, False), rows[0].schema)
        times = [sink.epoch(rows) for _ in range(SMALL_EPOCHS)]
        p50 = percentile([each * 1000 for each in times[-LAST:]], 0.5)
        how = f"{SMALL_ROWS:,} rows; the last {LAST} of {SMALL_EPOCHS:,} versions, on a local disk"
        found.append(at_most(f"{name} sink, commit of a small epoch, p50", p50, limit, "ms", how, digits=1))
    return found


def upserts(folder: Path) -> list[Result]:
    """Both sides replace the same share of equal tables, at random."""
    chance = np.random.default_rng(7)
    schema = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("name", pa.string())])

    def drawn() -> pa.RecordBatch:
        ids = chance.choice(UPSERT_TABLE, UPSERTS, replace=False)
        return keyed(ids, schema)

    path, other = folder / "ours", folder / "theirs"
    write_deltalake(str(path), pa.Table.from_batches([keyed(np.arange(UPSERT_TABLE), schema)]))
    shutil.copytree(path, other)
    place = SinkPlace("out", SnapshotStore(str(folder / "store")))
    sink = Sink(DeltaSink(place, DeltaAddress(str(path)), keys=["id"]), schema)

    def library() -> None:
        merging = DeltaTable(str(other)).merge(
            pa.Table.from_batches([drawn()]), "t.id = s.id", source_alias="s", target_alias="t"
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    ours, theirs = in_turn(lambda: sink.epoch([drawn()]), library, UPSERT_TURNS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    how = f"{UPSERTS:,} of {UPSERT_TABLE:,} rows at random, from the first row to the end of the commit"
    return [
        number("Delta sink, rows by keys: an epoch", percentile(ours, 0.5), "s", how),
        in_turns("Delta sink, rows by keys / the library's merge", ours, theirs, most=1.15),
        at_most("memory of the process, both sides", peak, 2, "GiB", "greatest resident size"),
    ]


class BareDelta:
    """Parquet by the same writer, and the library's commit, without marker and statistics."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder = folder
        DeltaTable.create(str(folder), Schema.from_arrow(schema))
        self._numbers = itertools.count()

    def append(self, rows: Sequence[pa.RecordBatch]) -> None:
        name = f"{next(self._numbers)}.parquet"
        size = parquet(self.folder / name, rows)
        table = DeltaTable(str(self.folder))
        statistics = json.dumps({"numRecords": ROWS})
        table.create_write_transaction(
            [AddAction(name, size, {}, int(time.time() * 1000), True, statistics)], "append", table.schema()
        )


class BareIceberg:
    """Parquet by the same writer, and the library's commit of the file."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder = folder
        catalog = _address(folder).catalog.connect()
        catalog.create_namespace_if_not_exists("bench")
        self.table = catalog.create_table("bench.rows", schema)
        self._numbers = itertools.count()

    def append(self, rows: Sequence[pa.RecordBatch]) -> None:
        path = self.folder / f"{next(self._numbers)}.parquet"
        parquet(path, rows)
        self.table.add_files([f"file://{path}"])


def delta(folder: Path, collects: bool) -> DeltaSink:
    return DeltaSink(_place(folder), DeltaAddress(str(folder / "table")), buffering=_buffering(collects))


def iceberg(folder: Path, collects: bool) -> IcebergSink:
    address = _address(folder)
    address.catalog.connect().create_namespace_if_not_exists("bench")
    return IcebergSink(_place(folder), address, buffering=_buffering(collects))


def _place(folder: Path) -> SinkPlace:
    return SinkPlace("out", SnapshotStore(str(folder / "store")))


def _buffering(collects: bool) -> Buffering | None:
    return Buffering(60.0) if collects else None


def _address(folder: Path) -> IcebergAddress:
    folder.mkdir(parents=True, exist_ok=True)
    properties = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.sqlite'}", "warehouse": f"file://{folder}"}
    return IcebergAddress.checked("iceberg.sink", "bench.rows", str(folder), properties)


def narrow(number: int) -> list[pa.RecordBatch]:
    chance = np.random.default_rng(7)
    columns = {f"c{place}": chance.integers(0, 1_000_000, number) for place in range(COLUMNS - 2)}
    table = pa.table(
        {**columns, "d": chance.random(number), "s": pa.array(chance.integers(0, 10_000, number)).cast(pa.string())}
    )
    return list(table.to_batches(max_chunksize=BATCH_ROWS))


def keyed(ids: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    names = pa.array(ids % 1000).cast(pa.string())
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(ids * 7), names], schema=schema)


def parquet(path: Path, rows: Sequence[pa.RecordBatch]) -> int:
    with path.open("wb") as file:
        writer = ParquetWriter(file, rows[0].schema)
        for batch in rows:
            writer.write(batch)
        writer.finish()
        return file.tell()


def in_turn(
    ours: Callable[[], object], theirs: Callable[[], object], turns: int = TURNS
) -> tuple[list[float], list[float]]:
    """Measure both in alternating order; the first turn is not counted."""
    found: dict[Callable[[], object], list[float]] = {ours: [], theirs: []}
    for turn in range(turns + 1):
        for work in (ours, theirs)[:: -1 if turn % 2 else 1]:
            took = seconds(work)
            if turn:
                found[work].append(took)
    return found[ours], found[theirs]


def seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _scope(epoch: int) -> EpochScope:
    return EpochScope("bench", EpochKey("bench", epoch), 1, EpochKey("bench", epoch - 1) if epoch > 1 else None)
