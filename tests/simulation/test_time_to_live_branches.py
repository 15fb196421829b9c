"""Time to live in a fork and after a rollback.

In processing time, rows expire by the current clock. In event time, all rows of the snapshot are still alive, including
rows that had expired later on the original branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import console, generator
from tests.kit.lives import TIMESTAMP, Life, Row, Step, at, struct

ROWS = pa.schema([("user", pa.string()), ("at", TIMESTAMP)])
HOUR = 3600
FORKED_AT = 2


class Pages(KeyedProcess):
    by_clock = ValueState("pages bigint", ttl="1 hour")
    by_events = ValueState("pages bigint", ttl="1 hour", ttl_on="event_time")
    output = struct(user="string", by_clock="long", by_events="long")

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for state in (self.by_clock, self.by_events):
            state.set((state.get() or 0) + len(rows))
        yield key.user, self.by_clock.get(), self.by_events.get()


def pipeline() -> Pipeline:
    found = Pipeline("visits")
    visits = found.read("visits", generator.source({"user": "string(id)", "at": "timestamp_seconds(id)"}))
    visits.with_watermark("at", "0 seconds").key_by("user").process(Pages).write("pages", console.sink())
    return found


def rows(*visits: tuple[str, float]) -> list[Row]:
    """Return visits of users, in hours after the beginning."""
    return [{"user": user, "at": at(hours * HOUR)} for user, hours in visits]


def users(life: Life) -> tuple[set[str], set[str]]:
    """Return the users in the state with processing-time expiry, and in that with event-time expiry."""
    by_clock, by_events = ({row["user"] for row in life.state(f"pages.by_{name}")} for name in ("clock", "events"))
    return by_clock, by_events


def last(life: Life) -> dict[str, tuple[int, int]]:
    """Return the output of the last epoch, by user."""
    return {row["user"]: (row["by_clock"], row["by_events"]) for row in life.shown("pages")[-1]}


@pytest.fixture
def life() -> Iterator[Life]:
    """Four epochs. State has ``a`` and ``b`` after the second, and neither after the last."""
    with Life(pipeline(), {"visits": ROWS}) as life:
        life.epoch(Step(clock=0), visits=rows(("a", 0), ("b", 0.2)))
        life.epoch(Step(clock=0.5 * HOUR), visits=rows(("a", 0.3)))
        assert (last(life), users(life)) == ({"a": (2, 2)}, ({"a", "b"}, {"a", "b"}))
        life.epoch(Step(clock=2 * HOUR), visits=rows(("c", 4)))
        life.epoch(Step(clock=2 * HOUR), visits=rows(("c", 4)))
        assert users(life) == ({"c"}, {"c"})
        yield life


@pytest.mark.parametrize(
    ("clock", "by_clock", "remaining"),
    [(0.8, 3, {"a", "b", "c"}), (1.2, 3, {"a", "c"}), (24, 1, {"a", "c"})],
    ids=["immediately", "when some rows have expired", "a day later"],
)
def test_fork_expires_rows_by_clock_and_keeps_them_in_event_time(
    life: Life, clock: float, by_clock: int, remaining: set[str]
) -> None:
    life.rows["visits"].slices[FORKED_AT:] = []
    life.continue_from(FORKED_AT, "fork")
    assert users(life) == ({"a", "b"}, {"a", "b"}), "the snapshot is unchanged"
    life.epoch(Step(clock=clock * HOUR), visits=rows(("a", 0.4), ("c", 0.4)))
    assert last(life) == {"a": (by_clock, 3), "c": (1, 1)}
    assert users(life) == (remaining, {"a", "b", "c"})
    for _ in range(2):  # the watermark of the second reflects the rows of the first
        life.epoch(visits=rows(("c", 1.35)))
    assert users(life)[1] == {"a", "c"}, "b expires an hour after its row in event time"


def test_input_after_the_snapshot_is_processed_again_equally(life: Life) -> None:
    original = last(life)
    life.continue_from(FORKED_AT, "again")
    life.epoch(Step(clock=2 * HOUR))
    life.epoch()
    assert (last(life), users(life)) == (original, ({"c"}, {"c"}))
