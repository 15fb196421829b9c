"""Checks and descriptions of an author's timers when the pipeline is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from epochal import BroadcastProcess, KeyedProcess, Pipeline
from epochal.connectors import generator
from epochal.errors import PipelineError
from epochal.operators.process.plan import ProcessOperator
from epochal.pipeline.graph import OperatorNode
from epochal.pipeline.stream import Stream


class Reminding(KeyedProcess):
    output = "at timestamp, `a``b` array<struct<x: int>>, n decimal(10, 2)"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None:
        any(ctx.timer(row.at) for row in rows)

    def on_timer(self, key: Any, at: datetime, ctx: Any) -> Iterator[Any]:
        yield at, [], 0


class WithoutOnTimer(KeyedProcess):
    output = "n int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None:
        ctx.processing_timer(ctx.epoch_time + timedelta(minutes=1))


class Behind(KeyedProcess):
    output = "n int"
    hold = "1 hour"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None:
        """Does nothing."""


class OtherTimerNames(KeyedProcess):
    """Attributes named ``timer`` of other objects are not timers."""

    output = "n int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None:
        rows[0].timer.cancel()
        key.timer(ctx)


class Control(BroadcastProcess):
    output = "n int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None:
        """Does nothing."""

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        """Does nothing."""

    def on_timer(self, key: Any, at: datetime, ctx: Any) -> None:
        """Does nothing."""


def timed(rows: Stream) -> Stream:
    return rows.with_watermark("at", "10 seconds")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda rows: rows.key_by("n").process(Reminding),
            r"Reminding uses ctx.timer\(..\), but its input has no event",
        ),
        (lambda rows: timed(rows).key_by("n").process(WithoutOnTimer), "does not define on_timer"),
        (lambda rows: rows.key_by("n").process(Behind), "hold is '1 hour', but its input has no event time"),
        (lambda rows: timed(rows).key_by("n").process(Behind, hold="soon"), "Behind.hold is 'soon'"),
        (
            lambda rows: rows.connect(rows.where("true"), broadcast=True, order_by="n").key_by("n").process(Control),
            "Control defines on_timer, but a BroadcastProcess has no timers",
        ),
    ],
)
def test_invalid_uses_of_timers_are_refused(build: Callable[[Stream], Stream], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        build(rows())


def test_operators_declare_their_watermark_hold_and_output_event_time() -> None:
    reminding = operator(timed(rows()).key_by("n").process(Reminding))
    assert (reminding.hold, reminding.event_time_of_output) == (0, "at")
    assert reminding.details()["timers"] == "event time (at), processing time"
    behind = operator(timed(rows()).key_by("n").process(Behind))
    assert (behind.hold, behind.event_time_of_output, "timers" in behind.details()) == (3_600_000_000, None, False)
    assert operator(timed(rows()).key_by("n").process(Behind, hold="2 seconds")).hold == 2_000_000
    assert operator(rows().key_by("n").process(OtherTimerNames)).event_time_of_output is None


def rows() -> Stream:
    return Pipeline("timers").read("rows", generator.source({"n": "id", "at": "timestamp_micros(id)"}))


def operator(stream: Stream) -> ProcessOperator:
    node = stream._builder.nodes[stream._node]
    assert isinstance(node, OperatorNode)
    assert isinstance(node.operator, ProcessOperator)
    return node.operator
