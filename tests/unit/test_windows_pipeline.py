"""``window(..)`` in a pipeline: refusals with their fix, kinds of stream, event time and descriptions."""

from __future__ import annotations

from typing import Any

import pytest

from epochal import KeyedProcess, Pipeline, ValueState, cumulative, session, sliding, tumbling
from epochal.connectors import console, generator
from epochal.errors import PipelineError
from epochal.pipeline.graph import Graph, OperatorNode
from epochal.pipeline.kinds import kinds_of
from epochal.pipeline.stream import Stream

COLUMNS = {"page": "id", "at": "timestamp_seconds(id)", "window_end": "id"}


def clicks() -> Stream:
    return Pipeline("pages").read("clicks", generator.source(COLUMNS))


def timed() -> Stream:
    return clicks().with_watermark("at", "10 seconds")


class Rows(KeyedProcess):
    output = "rows int"

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        yield (len(rows),)


class Remembers(Rows):
    last = ValueState("rows int")


class Waits(Rows):
    def on_timer(self, key: Any, at: Any, ctx: Any) -> Any:
        return []


@pytest.mark.parametrize(
    ("build", "fix"),
    [
        (lambda: clicks().key_by("page").window(tumbling("1 hour")), "with_watermark("),
        (lambda: timed().key_by("page").window("1 hour"), "tumbling(..), sliding(..)"),
        (lambda: timed().key_by("page").window(tumbling("1 hour"), "soon"), "allowed_lateness"),
        (lambda: timed().key_by("page").window(tumbling("1 hour"), "-1 hour"), "allowed_lateness"),
        (lambda: timed().key_by("page").window(tumbling("1 hour"), emit="always"), "'final' or 'updates'"),
        (lambda: timed().key_by("page").window(session("1 hour"), emit="updates"), "Leave emit out"),
        (lambda: timed().key_by("window_end").window(tumbling("1 hour")), "Rename it before key_by()"),
        (lambda: windowed().aggregate("pages", window_start="count(*)"), "Rename the aggregate"),
        (lambda: windowed().aggregate("pages"), "aggregate() requires a column"),
        (lambda: windowed().aggregate("pages", n="median(window_end)"), "median"),
        (lambda: windowed().top(0, by="at"), "keeps 1 to 1000 rows"),
        (lambda: clicks().top(3, by="at", within=tumbling("1 hour")), "with_watermark("),
        (lambda: windowed().process(Remembers), "second operator"),
        (lambda: windowed().process(Waits), "Remove on_timer"),
        (
            lambda: timed().key_by("page").window(tumbling("1 hour"), emit="updates").process(Rows),
            "could not replace them",
        ),
    ],
)
def test_errors_of_window_declarations_name_the_fix(build: Any, fix: str) -> None:
    with pytest.raises(PipelineError) as refused:
        build()
    assert fix in refused.value.message


def windowed() -> Any:
    return timed().key_by("page").window(tumbling("1 hour"))


def test_windowed_operators_have_a_kind_event_time_and_description() -> None:
    pipeline = Pipeline("pages")
    keyed = pipeline.read("clicks", generator.source(COLUMNS)).with_watermark("at", "10 seconds").key_by("page")
    results = [
        keyed.window(sliding("1 hour", "5 minutes"), "1 minute").aggregate("final", n="count(*)"),
        keyed.window(tumbling("1 hour"), emit="updates").aggregate("updates", n="count(*)"),
        keyed.window(cumulative("1 hour", "5 minutes"), emit="updates").aggregate("so_far", n="count(*)"),
        keyed.window(session("1 hour")).aggregate("sessions", n="count(*)"),
        keyed.window(tumbling("1 hour")).process(Rows, "called"),
        keyed.top(3, "at", "best", within=session("1 hour")),
        keyed.window(cumulative("1 hour", "5 minutes"), emit="updates").top(3, "at", "best_so_far"),
    ]
    for number, result in enumerate(results):
        result.write(f"out{number}", console.sink())
    graph: Graph = pipeline.graph()
    kinds = {node.name: str(kinds_of(graph)[node.id]) for node in graph.nodes if isinstance(node, OperatorNode)}
    assert kinds == {
        "final": "append",
        "updates": "upsert(page, window_start)",
        "so_far": "upsert(page, window_start, window_end)",
        "sessions": "append",
        "called": "append",
        "best": "append",
        "best_so_far": "upsert(page, window_start, window_end, rank)",
    }
    final = ["window_time", None, None, "window_time", "window_time", "window_time", None]
    assert [result.event_time for result in results] == final
    operators = {node.name: node.operator for node in graph.operators}
    assert operators["final"].hold == 60_000_000
    assert operators["final"].details() == {
        "keys": ["page"],
        "event_time": "at",
        "window": {"kind": "sliding", "size": "1 hour", "slide": "5 minutes"},
        "allowed_lateness": "1 minute",
        "emit": "final",
        "columns": {"n": "count(*)"},
    }
    assert operators["called"].details()["class"] == "Rows"
    assert operators["best"].details() == {
        "keys": ["page"],
        "event_time": "at",
        "window": {"kind": "session", "gap": "1 hour"},
        "emit": "final",
        "count": 3,
        "by": ["at"],
        "order": "descending",
    }
