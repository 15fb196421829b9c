"""Time to live over a downtime, and over upgrades.

Epoch time advances during a downtime, event time does not. The same holds after a fork or a rollback to an old
snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import console, generator
from epochal.errors import IncompatibleState
from epochal.testing import Harness

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
COLUMNS = {"user": "cast(id AS string)", "at": "timestamp_seconds(id)"}


class Pages(KeyedProcess):
    by_clock = ValueState("pages int", ttl="1 hour")
    by_events = ValueState("pages int", ttl="1 hour", ttl_on="event_time")
    output = "user string, by_clock int, by_events int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for state in (self.by_clock, self.by_events):
            state.set((state.get() or 0) + len(rows))
        yield key.user, self.by_clock.get(), self.by_events.get()


def pipeline() -> Pipeline:
    found = Pipeline("visits")
    keyed = found.read("visits", generator.source(COLUMNS)).with_watermark("at", "1 minute").key_by("user")
    keyed.process(Pages).write("pages", console.sink())
    keyed.aggregate("by_clock", ttl="1 hour", visits="count(*)", last="max(at)").write("clock", console.sink())
    by_events = keyed.aggregate("by_events", ttl="1 hour", ttl_on="event_time", visits="count(*)", mean="avg(1)")
    by_events.write("events", console.sink())
    return found


def visits(*visits: tuple[str, float]) -> list[dict[str, Any]]:
    """Rows of users, with times in hours after noon."""
    return [{"user": user, "at": NOON + timedelta(hours=hours)} for user, hours in visits]


def counts(shown: dict[str, pa.Table]) -> dict[str, tuple[int, ...]]:
    pages = {row["user"]: (row["by_clock"], row["by_events"]) for row in shown["pages"].to_pylist()}
    both = {name: {row["user"]: row["visits"] for row in shown[name].to_pylist()} for name in ("clock", "events")}
    assert {user: (both["clock"][user], both["events"][user]) for user in pages} == pages
    return {user: pages[user] for user in sorted(pages)}


def users(test: Harness, table: str) -> set[str]:
    return set(test.state(table)["user"].to_pylist())


@pytest.mark.long  # without Spark: tests/unit/tasks/test_time_to_live.py, test_aggregate_ttl.py
def test_downtime_expires_state_by_epoch_time_but_not_by_event_time(spark: SparkSession) -> None:
    clock, events = ("by_clock", "pages.by_clock"), ("by_events", "pages.by_events")
    with Harness(pipeline(), spark) as test:
        assert counts(test.epoch(at=NOON, visits=visits(("a", 0), ("b", 0), ("a", 0.1)))) == {"a": (2, 2), "b": (1, 1)}
        assert counts(test.epoch(at=NOON + timedelta(minutes=59), visits=visits(("a", 0.2)))) == {"a": (3, 3)}
        test.restart()  # a downtime of one day
        shown = test.epoch(at=NOON + timedelta(days=1), visits=visits(("a", 0.3), ("c", 0.3)))
        assert counts(shown) == {"a": (1, 4), "c": (1, 1)}
        assert [users(test, table) for table in clock] == [{"a", "c"}] * 2
        assert [users(test, table) for table in events] == [{"a", "b", "c"}] * 2
        test.advance(watermark=NOON + timedelta(hours=1.2))
        assert [users(test, table) for table in events] == [{"a", "c"}] * 2
        assert counts(test.epoch(visits=visits(("a", 1.3), ("b", 1.3)))) == {"a": (2, 5), "b": (1, 1)}


def visits_of(**time_to_live: Any) -> Pipeline:
    found = Pipeline("visits")
    keyed = found.read("visits", generator.source(COLUMNS)).key_by("user")
    keyed.aggregate("totals", visits="count(*)", **time_to_live).write("out", console.sink())
    return found


@pytest.mark.alternating(3)
def test_upgrades_add_and_change_the_time_to_live_of_an_aggregate(spark: SparkSession) -> None:
    def at(minutes: float, *users: str) -> dict[str, int]:
        shown = test.epoch(at=NOON + timedelta(minutes=minutes), visits=visits(*((user, 0) for user in users)))
        return {row["user"]: row["visits"] for row in shown["out"].to_pylist()}

    with Harness(visits_of(), spark) as test:
        at(0, "a", "b", "c")
        at(50, "a")
        test.upgrade(visits_of(ttl="1 hour"))
        assert at(100, "b") == {"b": 2}
        assert at(110, "a", "b") == {"a": 1, "b": 3}, "the time of existing rows begins at the snapshot at 50 minutes"
        test.upgrade(visits_of(ttl="2 hours"))
        assert at(112, "c", "b") == {"b": 4, "c": 1}, "expired rows are not restored"
        assert at(231, "a", "b") == {"a": 1, "b": 5}
        with pytest.raises(IncompatibleState, match=r"cannot be removed.*or give the operator a new name"):
            test.upgrade(visits_of())
