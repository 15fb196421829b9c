"""``map_arrow`` and ``map_pandas``: the input and output of their functions, and messages about invalid output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.contracts.stream_kind import APPEND, Kind
from epochal.engine.failures import failure_of
from epochal.errors import EpochalError, PipelineError
from epochal.operators.process.author_maps import AuthorMap
from epochal.pipeline.kinds import kinds_of
from epochal.pipeline.stream import Stream
from epochal.testing import Harness

SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64())])
BATCH = pa.record_batch({"n": pa.array([1, None])})


def read() -> tuple[Pipeline, Stream]:
    pipeline = Pipeline("maps")
    columns = {"a.b": "id", "n": "nullif(cast(id AS int), 0)", "t": "timestamp_seconds(id)"}
    return pipeline, pipeline.read("rows", generator.source(columns))


def test_rows_are_mapped_by_arrow_and_pandas_functions(spark: SparkSession) -> None:
    pipeline, rows = read()

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"n": pa.compute.multiply(batch["n"], 2), "x y": batch["a.b"]})

    def later(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            frame = frame[frame["n"].notna()]
            yield frame.assign(hour=frame["t"].dt.hour, tags=[["x"]] * len(frame))[["tags", "hour", "t", "n"]]

    rows.map_arrow(doubled, "`x y` bigint, n bigint").write("doubled", console.sink())
    rows.map_pandas(later, "n int, t timestamp, hour int, tags array<string>").write("later", console.sink())
    assert set(kinds_of(pipeline.graph()).values()) == {APPEND}
    at = datetime(2026, 1, 1, 7, tzinfo=UTC)
    with Harness(pipeline, spark) as test:
        given = test.epoch(rows=[(5, 1, at), (6, None, at)])
    assert sorted(given["doubled"].to_pylist(), key=str) == [{"x y": 5, "n": 2}, {"x y": 6, "n": None}]
    assert given["later"].to_pylist() == [{"n": 1, "t": at, "hour": 7, "tags": ["x"]}]


def test_mapping_an_upsert_stream_gives_updates() -> None:
    pipeline, rows = read()
    mapped = rows.key_by("n").aggregate("counts", times="count(*)").map_arrow(lambda batches: batches, "n int")
    assert kinds_of(pipeline.graph())[mapped._node].kind is Kind.UPDATES


def failure(function: Callable[[Any], Any], pandas: bool = False) -> str:
    with pytest.raises(EpochalError) as failed:
        list(AuthorMap("map_arrow(f)", function, SCHEMA, pandas)([BATCH]))
    found = failure_of(failed.value)
    return f"{found.type}: {found.message}"


def test_invalid_output_of_an_arrow_function_is_described() -> None:
    def raises(batches: Any) -> Any:
        raise ValueError("no")

    returned = failure(lambda batches: BATCH)
    assert returned.startswith("invalid-schema: map_arrow(f): its function must yield pyarrow.RecordBatch, any number;")
    declared = "Its schema is declared as: name string, n bigint."
    assert f"its function returned the columns n. {declared}" in failure(lambda batches: batches)
    wrong = pa.record_batch({"name": ["x"], "n": ["y"]})
    assert "its function returned column 'n' as string" in failure(lambda batches: [wrong])
    assert f"its function yielded 5, which is not a pyarrow.RecordBatch. {declared}" in failure(lambda batches: [5])
    assert "author-error: map_arrow(f): the author's code raised ValueError: no" in failure(raises)


def test_invalid_output_of_a_pandas_function_names_the_column() -> None:
    assert "its function returned the columns n." in failure(lambda frames: frames, pandas=True)
    message = failure(lambda frames: (frame.assign(name="x", n=["a", 1]) for frame in frames), pandas=True)
    assert "its function yielded column 'n' as object: " in message


def test_invalid_arguments_are_refused_before_a_run(spark: SparkSession) -> None:
    pipeline, rows = read()
    with pytest.raises(PipelineError, match=r"map_arrow\(\) takes a function from batches to batches, not 5"):
        rows.map_arrow(5, "n int")  # type: ignore[arg-type]
    rows.map_arrow(lambda batches: batches, "n in").write("out", console.sink())
    with pytest.raises(PipelineError, match=r"map_arrow\(<lambda>\) after source 'rows'"):
        Harness(pipeline, spark)
