"""The Python stage of plain Spark jobs: it passes rows on.

A module of its own, as workers import the one that a function is of, with all that it imports, and look through that
after every task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
