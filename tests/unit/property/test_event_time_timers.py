"""Timers fire once each, in order for each key, in epochs that open for them: through aborts, deaths and rescales."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal import Pipeline
from epochal.connectors import console, generator
from tests.kit.lives import TIMESTAMP, Life, Row, Step, examples, steps, struct
from tests.unit.tasks.test_process_timers import Commanded, Model

BEGIN = datetime(1970, 1, 1, tzinfo=UTC)
ROWS = pa.schema([("plane", pa.string()), ("at", TIMESTAMP), ("commands", pa.string())])
OUTPUT = struct(plane="string", action="string", calls="long")
DELAY = 3


class TypedCommanded(Commanded):
    output = OUTPUT


class TypedInterleaved(TypedCommanded):
    order_by = "at"


def pipeline(process: type[Commanded]) -> Pipeline:
    found = Pipeline("timers")
    columns = {"plane": "string(id)", "at": "timestamp_micros(id)", "commands": "string(id)"}
    rows = found.read("rows", generator.source(columns)).with_watermark("at", f"{DELAY} microseconds", name="time")
    rows.key_by("plane").process(process, "asking").write("out", console.sink())
    return found


ASKS = st.lists(
    st.sampled_from(
        ["e2a", "e5a", "e9b", "-e5a", "-e9b", "e0beat", "e7back", "e14over", "p4a", "p9b", "-p9b", "p3beat", "p12over"]
    ),
    max_size=3,
).map(" ".join)
EPOCHS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(st.tuples(st.sampled_from(["JFK", "LAX", None]), st.integers(0, DELAY), ASKS), max_size=4),
    ),
    min_size=5,
    max_size=10,
)
"""For each epoch: the advance of time, and rows by age with the timers that they request. In microseconds."""


@pytest.mark.parametrize("process", [TypedCommanded, TypedInterleaved])
@examples(5)
@given(EPOCHS, steps(3, 8), st.sampled_from(["heap", "lmdb"]))
def test_timers_fire_once_and_in_order_through_failures_and_rescales(
    process: type[Commanded], epochs: list[tuple[int, list[Any]]], schedule: list[Step], state_backend: str
) -> None:
    now = 0
    with Life(pipeline(process), {"rows": ROWS}, state_backend=state_backend, clock=BEGIN) as life:
        for number, (moved, requests) in enumerate(epochs):
            now += moved
            life.clock = BEGIN + timedelta(microseconds=now)
            by_age = sorted(requests, key=lambda each: -each[1])  # in the order of the model
            rows = [row(plane, max(now - age, 0), asks) for plane, age, asks in by_age]
            life.epoch(schedule[number % len(schedule)], rows=rows)
        life.clock = BEGIN + timedelta(microseconds=100)
        life.epoch(rows=[row("far", 1000, "")])
        life.settle()
        check(life, process is TypedInterleaved)
        assert life.state("asking._event_timers") == life.state("asking._processing_timers") == []


def row(plane: str | None, at: int, asks: str) -> Row:
    return {"plane": plane, "at": BEGIN + timedelta(microseconds=at), "commands": asks}


def check(life: Life, interleaved: bool) -> None:
    """Each epoch's output equals the model's at the clock of its manifest; no epoch opened without a reason."""
    model, deleted = Model(), False
    for manifest, shown in zip(life.manifests, life.shown("out"), strict=True):
        slice = manifest.slices.get("rows")
        rows = [] if slice is None else life.rows["rows"].slices[slice.start["position"]].to_pylist()
        fire, epoch_time = manifest.clock.places["asking"].fire, manifest.clock.epoch_time
        expected = model.run(rows, fire, epoch_time, interleaved)
        found: dict[Any, list[Any]] = {}
        for each in shown:
            found.setdefault(each["plane"], []).append((each["action"], each["calls"]))
        assert found == expected
        assert ("input" in manifest.conditions.opened_for) == (slice is not None)  # type: ignore[union-attr]
        if slice is None:
            # An epoch may open for a timer that the previous epoch deleted, because its tasks had read the older state.
            assert expected or deleted, "an epoch was opened for a timer, and none fired"
        deleted = any(ask.startswith("-") for each in rows for ask in each["commands"].split())
