"""The Python stage of plain Spark jobs, which returns its rows.

A separate module, because workers import the module of a function with all of its imports, and garbage collection after
every task scans them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
