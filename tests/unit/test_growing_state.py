"""Notes of ``check`` about state that grows with its keys: one for each operator, and no warning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from epochal import BatchFunction, KeyedProcess, ListState, MapState, Pipeline, UnkeyedProcess, ValueState, tumbling
from epochal.connectors import console, generator
from epochal.errors import PipelineError
from epochal.pipeline.description import GraphDescription, describe
from epochal.pipeline.stream import Stream


class Counted(KeyedProcess):
    last = ValueState("m int")
    recent = ListState("m int", ttl="1 day")
    counts = MapState(key="a int", value="m int")
    output = "n int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None: ...


class Expiring(KeyedProcess):
    recent = ListState("m int", ttl="1 day")
    output = "n int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None: ...


class Batched(BatchFunction):
    last = ValueState("m int")
    output = "n int"

    def process_batch(self, batch: pa.Table, states: Any, ctx: Any) -> pa.Table:
        return batch


class PerSubtask(UnkeyedProcess):
    lists = ListState("m int", scope="operator")
    output = "n int"

    def process(self, rows: Any, ctx: Any) -> None: ...


def described(build: Callable[[Stream], Stream]) -> GraphDescription:
    pipeline = Pipeline("p")
    columns = {"n": "id", "at": "timestamp_seconds(id)"}
    rows = pipeline.read("rows", generator.source(columns)).with_watermark("at", "1 minute")
    build(rows).write("out", console.sink())
    return describe(pipeline.graph())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda rows: rows.key_by("n").aggregate("a", c="count(*)"),
            "Operator 'a' keeps every key .* aggregate(.., ttl=",
        ),
        (
            lambda rows: rows.key_by("n").process(Counted),
            "Operator 'counted' keeps state 'last', 'counts' of .* ttl='7 days'",
        ),
        (lambda rows: rows.key_by("n").process_batch(Batched), "Operator 'batched' keeps state 'last' .* KeyedProcess"),
        (lambda rows: rows.key_by("n").distinct("d"), "Operator 'd' keeps every key .* drop_duplicates"),
        (lambda rows: rows.key_by("n").top(3, by="at"), "Operator 'top' keeps rows of every key"),
    ],
)
def test_growing_state_is_reported(build: Any, message: str) -> None:
    found = described(build)
    (note,) = found.notes
    first, _, last = message.partition(" .* ")
    assert note.startswith(first)
    assert last in note
    assert found.warnings == ()


@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.where("n > 1"),
        lambda rows: rows.key_by("n").aggregate("a", ttl="1 day", c="count(*)"),
        lambda rows: rows.key_by("n").process(Expiring),
        lambda rows: rows.process_any(PerSubtask),
        lambda rows: rows.key_by("n").window(tumbling("1 hour")).aggregate("w", c="count(*)"),
        lambda rows: rows.drop_duplicates("n", within="1 day"),
    ],
)
def test_bounded_state_is_not_reported(build: Any) -> None:
    assert described(build).notes == ()


def test_an_aggregate_over_changes_is_not_reported_separately() -> None:
    found = described(
        lambda rows: (
            rows.key_by("n").aggregate("a", changes=True, c="count(*)").key_by("c").aggregate("b", keys="count(*)")
        )
    )
    assert [note.split(" keeps ")[0] for note in found.notes] == ["Operator 'a'"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda rows: rows.key_by("n").distinct("d", ttl="1 day"), r"'d': distinct\(\) takes no ttl.*drop_duplicates"),
        (lambda rows: rows.latest("n", order_by="at", ttl="1 day"), r"latest\(\) takes no ttl.*deleted="),
    ],
)
def test_operators_without_expiry_refuse_a_ttl(build: Callable[[Stream], Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        described(build)
