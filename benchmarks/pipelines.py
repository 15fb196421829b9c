"""The measured pipelines: a count and a sum per key, as an aggregate and as a Python function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.inputs import SCHEMA
from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import files
from epochal.pipeline.stream import Stream


class CountPerKey(KeyedProcess):
    """The keyed Python function of the comparison: a count and a sum in one value state."""

    state = ValueState("rows long, total long")
    output = "key long, rows long, total long"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        count, total = self.state.get() or (0, 0)
        for row in rows:
            count, total = count + 1, total + row.value
        self.state.set(count, total)
        yield key.key, count, total


def aggregate(folder: Path) -> Pipeline:
    """One file an epoch; state table ``counts``."""
    pipeline = Pipeline("benchmark")
    count(_read(pipeline, folder))
    return pipeline


def process(folder: Path) -> Pipeline:
    """One file an epoch; state table ``counts.state``."""
    pipeline = Pipeline("benchmark")
    _read(pipeline, folder).key_by("key").process(CountPerKey, name="counts")
    return pipeline


def aggregate_to_files(folder: Path, output: Path) -> Pipeline:
    """One operator, one sink."""
    pipeline = Pipeline("benchmark")
    count(_read(pipeline, folder)).write("out", files.sink(str(output), mode="updates"))
    return pipeline


def count(stream: Stream) -> Stream:
    return stream.key_by("key").aggregate("counts", rows="count(*)", total="sum(value)")


def _read(pipeline: Pipeline, folder: Path) -> Stream:
    return pipeline.read("rows", files.source(str(folder), format="parquet", schema=SCHEMA, max_files=1))
