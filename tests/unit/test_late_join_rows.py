"""Late rows of a join of two streams, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochal import Pipeline
from epochal.connectors import console, generator
from tests.kit.lives import TIMESTAMP, Life, at

SCHEMA = pa.schema([("key", pa.string()), ("at", TIMESTAMP)])


def rows(*events: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"key": key, "at": at(second)} for key, second in events]


def test_late_rows_of_a_join_are_separated_by_side() -> None:
    pipeline = Pipeline("late")
    columns = {"key": "string(id)", "at": "timestamp_seconds(id)"}
    streams = [pipeline.read(name, generator.source(columns)) for name in ("left", "right")]
    left, right = (stream.with_watermark("at", "0 seconds", name=f"at_{i}") for i, stream in enumerate(streams))
    both = left.join(right, on="key", within=("0 seconds", "0 seconds"), how="left_semi")
    for name, stream in {"both": both.late, "of_left": both.left_late, "of_right": both.right_late}.items():
        stream.write(name, console.sink())
    both.write("out", console.sink())
    with Life(pipeline, {"left": SCHEMA, "right": SCHEMA}) as life:
        for _ in range(2):  # the first moves the watermark, the second fires by it
            life.epoch(left=rows(("a", 50)), right=rows(("a", 50)))
        life.epoch(left=rows(("b", 10), ("b", 60)), right=rows(("c", 20), ("d", 30), ("b", 60)))
        shown = {name: sorted(row["key"] for row in life.all_of(name)) for name in ("both", "of_left", "of_right")}
        assert shown == {"both": ["b", "c", "d"], "of_left": ["b"], "of_right": ["c", "d"]}
        assert life.late == {"join": 3}
        assert [row["key"] for row in life.all_of("out")] == ["a", "a", "b"]
