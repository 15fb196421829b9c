"""Another engine reads the tables that the sinks write: all rows, also with filters by which it skips files."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from epochal.backends.tables.sink import TableSink
from epochal.contracts.backend import DecidedEpoch
from epochal.contracts.identity import TaskScope
from epochal.testing.servers.process import ServerUnavailable
from epochal.testing.sink_contract import epoch
from tests.kit import duckdb_reader
from tests.kit.delta_tables import DeltaFolder
from tests.kit.iceberg_tables import sqlite_catalog
from tests.unit.backends.test_delta_values import values

pytestmark = [pytest.mark.server, pytest.mark.slow]
COLUMNS = ("id", "big", "tiny", "double", "text", "day", "price", "flag")
FILES, FILTERS = 12, 40


def written(sink: TableSink, parts: list[pa.Table]) -> None:
    """Write the parts as files of two epochs."""
    sink.check(parts[0].schema)
    sink.recover(epoch(0))
    for number, some in ((1, parts[::2]), (2, parts[1::2])):
        handles = []
        for subtask, part in enumerate(some):
            transaction = sink.start(TaskScope(epoch(number), "out", subtask))
            for batch in part.to_batches():
                transaction.write(batch)
            handles.append(transaction.pre_commit())
        sink.commit_decided([DecidedEpoch(epoch(number), tuple(handles), number - 1 or None)])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_duckdb_finds_all_rows(kind: str, tmp_path: Path, run_seed: int) -> None:
    chance = random.Random(run_seed)
    parts = [values(chance, chance.randrange(1, 9)).select(COLUMNS) for _ in range(FILES)]
    if kind == "iceberg":  # which has no integers of 8 bits
        parts = [part.set_column(2, "tiny", part["tiny"].cast(pa.int32())) for part in parts]
    everything = pa.concat_tables(parts)
    # Bounds in Parquet files do not count NaN, which DuckDB takes for the greatest number: it skips some of these rows.
    numbers = [None if value is None or value != value else value for value in everything["double"].to_pylist()]
    everything = everything.set_column(3, "double", pa.array(numbers, pa.float64()))
    everything = everything.set_column(0, "id", pa.array(range(everything.num_rows), pa.int64()))
    offsets = [sum(part.num_rows for part in parts[:place]) for place in range(FILES)]
    parts = [everything.slice(start, part.num_rows) for start, part in zip(offsets, parts, strict=True)]
    if kind == "delta":
        folder = DeltaFolder(tmp_path / "orders")
        written(folder.make(), parts)
        source = f"delta_scan('{folder.path}')"
    else:
        orders = sqlite_catalog(tmp_path)
        written(orders.make(), parts)
        table = orders.table()
        assert table is not None
        source = f"iceberg_scan('{table.metadata_location.removeprefix('file://')}')"
    filters = ["true", *(predicate(everything, chance) for _ in range(FILTERS))]
    everything_rows = tmp_path / "everything.parquet"
    pa.parquet.write_table(everything, everything_rows)
    queries = [
        f"SELECT id, big, tiny, text, day, price, flag FROM {place} WHERE {where} ORDER BY id"
        for where in filters
        for place in (source, f"read_parquet('{everything_rows}')")
    ]
    try:
        found = duckdb_reader.answers(queries)
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    for where, rows, expected in zip(filters, found[::2], found[1::2], strict=True):
        assert rows == expected, where
    assert len(found[0]) == everything.num_rows


def predicate(rows: pa.Table, chance: random.Random) -> str:
    """A comparison of a column with one of its values, or with null."""
    name = chance.choice(COLUMNS[1:-1])
    value = chance.choice([*rows[name].drop_null().to_pylist(), None])
    if value is None:
        return f"{name} IS {chance.choice(('', 'NOT '))}NULL"
    text = str(value).replace("'", "''")
    return f"{name} {chance.choice(('<', '<=', '=', '>=', '>'))} '{text}'"
