"""Parquet files of sinks: row groups and the compression of columns."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from epochal.backends.file_formats import ROW_GROUP_BYTES, ParquetWriter

_ROWS = 1_000


def test_incompressible_bytes_are_stored_uncompressed() -> None:
    chance = np.random.default_rng(3)
    rows = pa.record_batch(
        {
            "id": np.arange(_ROWS),
            "picture": pa.array([chance.bytes(500) if row % 7 else None for row in range(_ROWS)], pa.binary()),
            "repeated": pa.array([b"the same, " * 50] * _ROWS, pa.large_binary()),
            "name": [f"row {row}" * 30 for row in range(_ROWS)],
            "list.of": pa.array([[row, row + 1] for row in range(_ROWS)], pa.list_(pa.int64())),
        }
    )
    file = _written([rows])
    assert _codecs(file) == {
        "id": "ZSTD",
        "picture": "UNCOMPRESSED",
        "repeated": "ZSTD",
        "name": "ZSTD",
        "list.of.list.element": "ZSTD",
    }
    assert file.read().equals(pa.Table.from_batches([rows]))


def test_small_columns_are_always_compressed() -> None:
    rows = pa.record_batch({"picture": pa.array([np.random.default_rng(3).bytes(500)], pa.binary())})
    assert _codecs(_written([rows])) == {"picture": "ZSTD"}


def test_columns_with_an_incompressible_beginning_are_compressed() -> None:
    chance = np.random.default_rng(3)
    values = [chance.bytes(500) if row < 50 else b"the same, " * 50 for row in range(_ROWS)]
    assert _codecs(_written([pa.record_batch({"value": pa.array(values, pa.binary())})])) == {"value": "ZSTD"}


def test_row_groups_of_wide_rows_are_limited_in_bytes() -> None:
    wide = pa.record_batch({"value": pa.array([bytes(1024 * 1024)] * 10, pa.binary())})
    batches = ROW_GROUP_BYTES // wide.nbytes + 2
    file = _written([wide] * batches)
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [
        10 * (batches - 1),
        10,
    ]
    assert file.metadata.num_rows == 10 * batches


def test_a_file_without_rows_has_its_columns() -> None:
    rows = pa.record_batch({"id": pa.array([], pa.int64())})
    assert _written([rows]).read().equals(pa.Table.from_batches([rows]))


def _written(batches: list[pa.RecordBatch]) -> pq.ParquetFile:
    file = BytesIO()
    writer = ParquetWriter(file, batches[0].schema)
    for batch in batches:
        writer.write(batch)
    writer.finish()
    return pq.ParquetFile(file)


def _codecs(file: pq.ParquetFile) -> dict[str, str]:
    group = file.metadata.row_group(0)
    columns = (group.column(place) for place in range(group.num_columns))
    return {column.path_in_schema: column.compression for column in columns}
