"""The Delta sink: values, partitions, files, and the bounds in the log by which readers skip files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.contracts.backend import DecidedEpoch, SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.testing.sink_contract import epoch
from tests.kit.delta_tables import DeltaFolder, opened


def written(sink: DeltaSink, rows: pa.Table) -> None:
    """Write the rows as one epoch, in small batches."""
    sink.check(rows.schema)
    sink.recover(epoch(0))
    transaction = sink.start(TaskScope(epoch(1), "out", 0))
    for batch in rows.to_batches(max_chunksize=7):
        transaction.write(batch)
    handle = transaction.pre_commit()
    sink.commit_decided([DecidedEpoch(epoch(1), (Handle.decode(handle.encode()),))])


def values(seed: random.Random, number: int) -> pa.Table:
    """Values of all types for which the log has bounds, and edges of their ranges."""

    def chosen(edges: Sequence[Any], draw: Callable[[], Any]) -> list[Any]:
        return [seed.choice(edges) if seed.random() < 0.2 else draw() for _ in range(number)]

    def moment() -> datetime:
        return datetime.fromtimestamp(seed.randrange(-(10**9), 10**9) + seed.random(), UTC)

    edges = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), None]
    moments = chosen(edges, moment)
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "big": (chosen([None, 2**63 - 1, -(2**63)], lambda: seed.randrange(-100, 100)), pa.int64()),
        "tiny": (chosen([None, 127, -128], lambda: seed.randrange(-9, 9)), pa.int8()),
        "double": (chosen([None, float("nan"), float("inf"), -0.0], lambda: seed.uniform(-9, 9)), pa.float64()),
        "single": (chosen([None, float("-inf")], lambda: seed.uniform(-9, 9)), pa.float32()),
        "text": (
            chosen([None, "", "é漢🎉", "x" * 100, "\U0010ffff" * 40], lambda: chr(97 + seed.randrange(26))),
            pa.string(),
        ),
        "day": (chosen([None, date(1, 1, 1), date(9999, 12, 31)], lambda: moment().date()), pa.date32()),
        "at": (moments, pa.timestamp("us", "UTC")),
        "local": ([None if each is None else each.replace(tzinfo=None) for each in moments], pa.timestamp("us")),
        "money": (chosen([None], lambda: Decimal(seed.randrange(10**9)).scaleb(-2)), pa.decimal128(20, 2)),
        "price": (chosen([None], lambda: Decimal(seed.randrange(10**9)).scaleb(-2)), pa.decimal128(12, 2)),
        "flag": (chosen([None, True, False], lambda: True), pa.bool_()),
        "bytes": (chosen([None, b"", b"\xff"], lambda: seed.randbytes(3)), pa.binary()),
        "list": (chosen([None, []], lambda: [1, None]), pa.list_(pa.int32())),
        "struct": (chosen([None], lambda: {"a": 1, "b": None}), pa.struct([("a", pa.int64()), ("b", pa.string())])),
        "map": (chosen([None], lambda: [("k", 1)]), pa.map_(pa.string(), pa.int64())),
    }
    arrays = {name: pa.array(found, type) for name, (found, type) in columns.items()}
    return pa.table({"id": pa.array(range(number), pa.int64()), **arrays})


def test_values_are_read_back_unchanged(folder: DeltaFolder, run_seed: int) -> None:
    found = values(random.Random(run_seed), 300)
    written(folder.make(), found)
    read = opened(folder).to_pyarrow_table().sort_by("id").cast(found.schema)
    assert repr(read.to_pylist()) == repr(found.to_pylist())  # NaN is not equal to itself


@pytest.mark.parametrize("column", ["text", "big", "tiny", "day", "flag"])
def test_partition_values_are_read_back_unchanged(tmp_path: Path, run_seed: int, column: str) -> None:
    folder = DeltaFolder(tmp_path / "orders", [column])
    found = values(random.Random(run_seed), 60).select(["id", "double", column])
    if column == "text":
        found = found.filter(pc.fill_null(pc.not_equal(found["text"], ""), True))
    written(folder.make(), found)
    read = opened(folder).to_pyarrow_table(columns=found.column_names).sort_by("id").cast(found.schema)
    assert repr(read.to_pylist()) == repr(found.to_pylist())


def test_bounds_in_the_log_contain_all_values(tmp_path: Path, run_seed: int) -> None:
    """Readers skip a file by its bounds and by its number of nulls."""
    seed = random.Random(run_seed)
    folder = DeltaFolder(tmp_path / "orders")
    parts = [values(seed, seed.randrange(1, 9)) for _ in range(60)]
    sink = folder.make()
    sink.check(parts[0].schema)
    sink.recover(epoch(0))
    bounded = set()
    for subtask, part in enumerate(parts):
        transaction = sink.start(TaskScope(epoch(1), "out", subtask))
        for batch in part.to_batches():
            transaction.write(batch)
        (file,) = transaction.pre_commit().payload["files"]
        found = json.loads(file["statistics"])
        assert found["numRecords"] == part.num_rows
        for name, nulls in found["nullCount"].items():
            assert nulls == part[name].null_count, name
        for name, least in found["minValues"].items():
            assert least is not None and all(
                in_log(value) >= least for value in part[name].to_pylist() if value is not None
            )
            bounded.add(name)
        for name, greatest in found["maxValues"].items():
            assert all(in_log(value, 1) <= greatest for value in part[name].to_pylist() if value is not None), name
    assert bounded == {"id", "big", "tiny", "double", "single", "text", "day", "at", "local", "price"}


def in_log(value: Any, millisecond: int = 0) -> Any:
    """The value in the order of the log's texts. ``millisecond``: 1 rounds a time up."""
    if isinstance(value, datetime):
        plain = value.replace(tzinfo=None)
        micros = plain.microsecond % 1000
        shown = plain - timedelta(microseconds=micros)
        if micros and millisecond:
            shown += timedelta(milliseconds=1)
        return shown.isoformat(timespec="milliseconds") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


def test_large_epochs_become_several_files(folder: DeltaFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.backends.file_formats.ROW_GROUP", 10)
    found = pa.table({"id": pa.array(range(100), pa.int64()), "name": pa.array(["x"] * 100)})
    written(DeltaSink(SinkPlace("out"), DeltaAddress(str(folder.path)), file_bytes=1), found)
    assert len(opened(folder).file_uris()) > 3
    assert opened(folder).to_pyarrow_table().sort_by("id").equals(found)
