"""Joins of two windowed streams on equal key and window, as in Spark."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pyarrow as pa
import pytest

from epochal import Pipeline, Stream, tumbling
from epochal.connectors import console, generator
from epochal.errors import PipelineError
from epochal.operators.joins.interval_plan import IntervalJoinKind
from tests.kit.lives import TIMESTAMP, Life, Step, at

WINDOWS = ["key", "window_start", "window_end"]
SCHEMA = pa.schema([("key", pa.string()), ("at", TIMESTAMP), ("n", pa.int64())])
VIEWS = [(key, second) for key, second in product("ab", (1, 2, 11, 25)) if (key, second) != ("b", 11)]
CLICKS = [("a", 3), ("a", 31), ("b", 4), ("b", 5), ("c", 12)]
LAST = ("z", 1000)


def windowed(pipeline: Pipeline) -> tuple[Stream, Stream]:
    """Views and clicks, each counted by key in windows of ten seconds."""
    columns = {"key": "string(id)", "at": "timestamp_seconds(id)", "n": "id"}
    counted = []
    for name in ("views", "clicks"):
        rows = pipeline.read(name, generator.source(columns)).with_watermark("at", "0 seconds", name=f"{name}_at")
        windows = rows.key_by("key").window(tumbling("10 seconds"))
        counted.append(windows.aggregate(f"counted_{name}", **{name: "count(*)"}))
    return counted[0], counted[1]


def rows(*events: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"key": key, "at": at(second), "n": second} for key, second in events]


def counts(events: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Number of rows by key and start of the window."""
    found: dict[tuple[str, int], int] = {}
    for key, second in events:
        window = key, second // 10 * 10
        found[window] = found.get(window, 0) + 1
    return found


def joined(how: str) -> set[tuple[Any, ...]]:
    """Expected result of the join."""
    views, clicks = counts(VIEWS), counts(CLICKS)
    both = views.keys() & clicks.keys()
    if how in ("left_semi", "left_anti"):
        chosen = both if how == "left_semi" else views.keys() - both
        return {(*window, views[window]) for window in chosen}
    included = both | {*views} if how in ("left", "full") else both
    included = included | {*clicks} if how in ("right", "full") else included
    return {(*window, views.get(window), clicks.get(window)) for window in included}


def test_equal_windows_are_joined_and_the_result_has_their_time() -> None:
    pipeline = Pipeline("equal")
    views, clicks = windowed(pipeline)
    for how in get_args(IntervalJoinKind):
        both = views.join(clicks, on=WINDOWS, how=how, name=how)
        assert both.event_time == "window_time"
        both.write(how, console.sink())
    times = views.join(clicks, on=["key", "window_time"], how="left_semi", name="by_time")
    times.key_by("key").window(tumbling("20 seconds")).aggregate("longer", n="sum(views)").write("n", console.sink())
    with Life(pipeline, {"views": SCHEMA, "clicks": SCHEMA}) as life:
        life.epoch(views=rows(*VIEWS[:4]), clicks=rows(*CLICKS[:3]))
        life.epoch(Step("restart", 3), views=rows(*VIEWS[4:], LAST), clicks=rows(*CLICKS[3:]))
        life.epoch(clicks=rows(LAST))
        life.settle()
        for how in get_args(IntervalJoinKind):
            found = life.all_of(how)
            seconds = [int((row["window_start"] - at(0)).total_seconds()) for row in found]
            shown = ([row["key"], second] for row, second in zip(found, seconds, strict=True))
            values = [name for name in ("views", "clicks") if found and name in found[0]]
            rest = ([row[name] for name in values] for row in found)
            assert {(*key, *value) for key, value in zip(shown, rest, strict=True)} == joined(how), how
            assert len(found) == len(joined(how))
            for row, second in zip(found, seconds, strict=True):
                assert (row["window_time"], row["window_end"]) == (at(second + 9.999999), at(second + 10)), how
        assert sorted((row["key"], row["n"]) for row in life.all_of("n")) == [("a", 2), ("b", 2)]
        assert not life.late
        assert life.state("inner.left") == life.state("inner.right") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": "key"}, r"on=\['key', 'window_start', 'window_end'\]. To join rows"),
        ({"on": ["key", "window_start"]}, r"on=\['key', 'window_start', 'window_end'\]"),
        ({"on": "window_time"}, "on the event time 'window_time' only"),
        ({"on": ["key", "window_time"], "within": ("0 seconds", "1 hour")}, "Remove one of the two"),
    ],
)
def test_joins_of_windows_require_both_bounds_of_the_window(arguments: dict[str, Any], message: str) -> None:
    views, clicks = windowed(Pipeline("refused"))
    with pytest.raises(PipelineError, match=message):
        views.join(clicks, **arguments)
