"""The input of the bulk measures: Parquet files of keyed rows, the same on every machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "key long, value long"


def write_files(folder: Path, files: int, rows: int, keys: int, seed: int = 1) -> Path:
    """Write ``files`` files of ``rows`` rows with uniformly distributed keys. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(files):
        table = pa.table(
            {
                "key": random.integers(0, keys, rows, dtype=np.int64),
                "value": random.integers(0, 1000, rows, dtype=np.int64),
            }
        )
        pq.write_table(table, folder / f"{number:04}.parquet")
    return folder


def write_every_key(file: Path, keys: int) -> Path:
    """Write one row for each key, which fills a state table with exactly ``keys`` rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(keys, dtype=np.int64)
    pq.write_table(pa.table({"key": numbers, "value": np.ones(keys, dtype=np.int64)}), file)
    return file
