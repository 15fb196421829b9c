"""The Iceberg sink: values and partitions."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal.contracts.backend import DecidedEpoch
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.testing.sink_contract import epoch
from tests.kit.iceberg_tables import sqlite_catalog


def values(seed: random.Random, number: int) -> pa.Table:
    """Values of all types by which tables are partitioned, and others."""
    moments = [datetime.fromtimestamp(seed.randrange(10**9), UTC) for _ in range(number)]
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "text": ([seed.choice([None, "", "a", "é漢🎉"]) for _ in range(number)], pa.string()),
        "whole": ([seed.choice([None, -1, 0, 7]) for _ in range(number)], pa.int32()),
        "money": ([seed.choice([None, Decimal("1.50"), Decimal("-2.00")]) for _ in range(number)], pa.decimal128(9, 2)),
        "day": ([moment.date() for moment in moments], pa.date32()),
        "at": (moments, pa.timestamp("us", "UTC")),
        "local": ([moment.replace(tzinfo=None) for moment in moments], pa.timestamp("us")),
        "flag": ([seed.choice([None, True, False]) for _ in range(number)], pa.bool_()),
        "bytes": ([seed.choice([None, b"", b"\xff"]) for _ in range(number)], pa.binary()),
        "double": ([seed.choice([None, 1.5, float("nan")]) for _ in range(number)], pa.float64()),
        "list": ([seed.choice([None, [1, None]]) for _ in range(number)], pa.list_(pa.int32())),
    }
    arrays = {name: pa.array(found, type) for name, (found, type) in columns.items()}
    return pa.table({"id": pa.array(range(number), pa.int64()), **arrays})


@pytest.mark.parametrize(
    "partition_by",
    [
        [],
        ["text"],
        ["money", "flag"],
        ["day(at)", "bucket(4, id)"],
        ["month(day)", "truncate(1, text)"],
        ["hour(local)"],
        ["bytes"],
    ],
)
def test_values_are_read_back_unchanged(tmp_path: Path, run_seed: int, partition_by: list[str]) -> None:
    orders = sqlite_catalog(tmp_path, partition_by=partition_by)
    found = values(random.Random(run_seed), 60)
    sink = orders.make()
    sink.check(found.schema)
    sink.recover(epoch(0))
    transaction = sink.start(TaskScope(epoch(1), "out", 0))
    for batch in found.to_batches(max_chunksize=7):
        transaction.write(batch)
    handle = Handle.decode(transaction.pre_commit().encode())
    sink.commit_decided([DecidedEpoch(epoch(1), (handle,))])
    table = orders.table()
    assert table is not None
    read = table.scan().to_arrow().sort_by("id").cast(found.schema)
    assert repr(read.to_pylist()) == repr(found.to_pylist())  # NaN is not equal to itself
    by_text = table.scan(row_filter="text == 'a'").to_arrow()
    assert by_text.num_rows == sum(value == "a" for value in found["text"].to_pylist())
