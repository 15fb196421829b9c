"""Joins of streams and deduplication equal loops over all rows, through aborts, restarts and rescales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epochal import Pipeline
from epochal.connectors import console
from epochal.contracts.conditions import microseconds
from tests.kit.lives import Life, Row, Step, cut, examples, steps
from tests.unit.property.batch import SECOND, Event, as_of, joined
from tests.unit.property.test_event_time_chains import (
    DELAY,
    EVENTS,
    JITTER,
    MANY_CUTS,
    OTHERS,
    ROWS,
    arriving,
    exact,
    far,
    input_rows,
    source,
)

KINDS = st.sampled_from([("inner", "full"), ("left", "left_semi"), ("right", "left_anti")])
LOW, HIGH = -5, 8


def joins(kinds: Sequence[Any], dated: str) -> Pipeline:
    pipeline = Pipeline("joins")
    rows, others = source(pipeline, "rows", ROWS), source(pipeline, "others", OTHERS)
    for how in kinds:
        near = rows.join(others, on="key", within=(f"{LOW} seconds", f"{HIGH} seconds"), how=how, name=how)
        near.write(how, console.sink())
    versions = others.latest("key", order_by="other_at")
    rows.join(versions, on="key", as_of="at", how=dated, name="dated").write("dated", console.sink())  # type: ignore[arg-type]
    return pipeline


def side_by_side(left: Sequence[Sequence[Event]], right: Sequence[Sequence[Event]]) -> list[dict[str, list[Row]]]:
    """Epochs with the rows of both sources."""
    return [
        {"rows": input_rows(mine), "others": input_rows(other, OTHERS)}
        for mine, other in zip_longest(left, right, fillvalue=())
    ]


def shown(rows: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """Left and right row of each pair, with nulls for a missing one, without the last row of either source."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        if row["key"] != "far":
            times = {name: row.get(name) and microseconds(row[name]) for name in ("at", "other_at")}
            found[row["key"], times["at"], row.get("n"), times["other_at"], row.get("other")] += 1
    return found


def pair(left: Event | None, right: Event | None) -> tuple[Any, ...]:
    one, other = left or Event(None, None, None), right or Event(None, None, None)  # type: ignore[arg-type]
    return (left or right or one).key, one.time, one.number, other.time, other.number


def unique(events: Sequence[Event]) -> list[Event]:
    """One event of each key and time: the order of several versions of one time is undefined."""
    return list({(event.key, event.time): event for event in events}.values())


@examples(4)
@given(EVENTS, EVENTS.map(unique), JITTER, MANY_CUTS, MANY_CUTS, steps(2, 8), KINDS, st.sampled_from(["inner", "left"]))
def test_joins_of_streams_equal_nested_loops(
    left: list[Event],
    right: list[Event],
    jitter: list[int],
    cuts: list[int],
    more: list[int],
    steps: list[Step],
    kinds: tuple[str, ...],
    dated: str,
) -> None:
    epochs = side_by_side(cut(arriving(left, jitter), cuts), cut(arriving(right, jitter[::-1]), more))
    with Life(joins(kinds, dated), {"rows": ROWS, "others": OTHERS}) as life:
        life.live([*epochs, {"rows": far(), "others": far(OTHERS)}], steps)
        outputs = {name: shown(life.all_of(name)) for name in (*kinds, "dated")}
        assert not life.late
        assert all(row["key"] == "far" for how in kinds for row in life.state(f"{how}.left"))
    rows, others = exact(left), exact(right)
    pairs = joined(rows, others, LOW * SECOND, HIGH * SECOND)
    matched = {id(one) for one, _ in pairs}, {id(other) for _, other in pairs}
    lone = [pair(one, None) for one in rows if id(one) not in matched[0]]
    lone_right = [pair(None, other) for other in others if id(other) not in matched[1]]
    inner = [pair(*both) for both in pairs]
    expected = {
        "inner": inner,
        "left": [*inner, *lone],
        "right": [*inner, *lone_right],
        "full": [*inner, *lone, *lone_right],
        "left_semi": [pair(one, None) for one in rows if id(one) in matched[0]],
        "left_anti": lone,
    }
    for how in kinds:
        assert outputs[how] == Counter(expected[how]), how
    # The time of a version is not in the output.
    versions = [(row.key, row.time, row.number, None, found and found.number) for row, found in as_of(rows, others)]
    assert outputs["dated"] == Counter(row for row in versions if dated == "left" or row[-1] is not None)


@examples(5)
@given(EVENTS, JITTER, MANY_CUTS, steps(2, 8), st.sampled_from([5, 12]))
def test_drop_duplicates_keeps_the_first_row_of_each_interval(
    events: list[Event], jitter: list[int], cuts: list[int], steps: list[Step], within: int
) -> None:
    """Rows of one key and time are equal here, so any of them may stay."""
    pipeline = Pipeline("duplicates")
    first = source(pipeline, "rows", ROWS).drop_duplicates("key", within=f"{within} seconds", name="first")
    first.write("first", console.sink())
    epochs = cut(arriving([Event(key, time, time) for key, time, _ in events], jitter), cuts)
    with Life(pipeline, {"rows": ROWS}) as life:
        # Times observed in the last epoch take effect in the next one, so another epoch follows.
        life.live([*({"rows": input_rows(part)} for part in epochs), {"rows": far()}, {"rows": far()}], steps)
        retained = Counter((row["key"], row["n"]) for row in life.all_of("first") if row["key"] != "far")
        assert not life.late
        assert {row["key"] for row in life.state("first")} == {"far"}
    expected: Counter[tuple[Any, int]] = Counter()
    until: dict[Any, int] = {}
    for epoch in epochs:
        for key, time, _ in sorted(epoch, key=lambda event: event.time):
            if time >= until.get(key, -DELAY):
                expected[key, time] += 1
                until[key] = time + within
    assert retained == expected
