"""Chains of windows and joins over event time equal loops over all rows, for any epochs and attempts.

No row is late if its source respects its delay, however far apart partitions are and whichever source is idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from epochal import KeyedProcess, Pipeline, session, sliding, tumbling
from epochal.connectors import console, generator
from epochal.contracts.conditions import microseconds
from epochal.pipeline.stream import Stream
from tests.kit.lives import (
    BEGIN,
    TIMESTAMP,
    Life,
    Row,
    Step,
    at,
    cut,
    examples,
    of_partition,
    steps,
    struct,
)
from tests.unit.property.batch import SECOND, Event, Windows, in_sessions, in_sliding, joined, results

ROWS = pa.schema([("key", pa.string()), ("at", TIMESTAMP), ("n", pa.int64())])
OTHERS = pa.schema([("key", pa.string()), ("other_at", TIMESTAMP), ("other", pa.int64())])
DELAY, FAR = 20, 100_000
NUMBERS = {"rows": "count(*)", "n": "sum(n)"}

EVENTS = st.lists(
    st.builds(Event, st.sampled_from([None, "a", "b"]), st.integers(0, 90), st.integers(-3, 9)),
    min_size=15,
    max_size=25,
)
"""Times in seconds."""
JITTER = st.lists(st.integers(0, DELAY), min_size=25, max_size=25)
CUTS = st.lists(st.integers(0, 100), min_size=2, max_size=5)
MANY_CUTS = st.lists(st.integers(0, 100), min_size=6, max_size=10)
TAKEN = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8)
"""Number of rows of each of two partitions in an epoch."""


def source(pipeline: Pipeline, name: str, columns: pa.Schema, **watermark: Any) -> Stream:
    """Declared as a generator with columns of these types; the test supplies the rows."""
    types = {"key": "string(id)", "n": "id", "other": "id"}
    declared = {column: types.get(column, "timestamp_seconds(id)") for column in columns.names}
    return pipeline.read(name, generator.source(declared)).with_watermark(
        columns.names[1], f"{DELAY} seconds", name=f"time_of_{name}", **watermark
    )


def arriving(events: Sequence[Event], jitter: Sequence[int]) -> list[Event]:
    """In order of time, each event up to the delay out of order."""
    order = zip(events, jitter, strict=False)
    return [event for event, _ in sorted(order, key=lambda pair: pair[0].time + pair[1])]


def input_rows(events: Sequence[Event], columns: pa.Schema = ROWS) -> list[Row]:
    return [dict(zip(columns.names, (key, at(time), n), strict=True)) for key, time, n in events]


def exact(events: Sequence[Event]) -> list[Event]:
    """In microseconds since the Unix epoch."""
    return [Event(key, microseconds(at(time)), n) for key, time, n in events]


def far(columns: pa.Schema = ROWS) -> list[Row]:
    """A row with a key of its own and a time after all others."""
    return input_rows([Event("far", FAR, 0)], columns)


def windows(rows: Sequence[Row], *columns: str) -> Counter[tuple[Any, ...]]:
    """Output of windows, except for windows of the last row."""
    return Counter(
        (row["key"], microseconds(row["window_start"]), microseconds(row["window_end"]), *(row[c] for c in columns))
        for row in rows
        if row["key"] != "far"
    )


def sums(found: Windows) -> Counter[tuple[Any, ...]]:
    return Counter((*window, len(numbers), sum(numbers)) for window, numbers in found.items())


class Gathered(KeyedProcess):
    """All numbers of a window."""

    output = struct(key="string", numbers="string")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        yield key.key, str(sorted(row.n for row in rows))


def every_window() -> Pipeline:
    pipeline = Pipeline("windows")
    keyed = source(pipeline, "rows", ROWS).key_by("key")
    keyed.window(tumbling("10 seconds")).aggregate("tumbling", **NUMBERS).write("tumbling", console.sink())
    keyed.window(sliding("10 seconds", "4 seconds"), "7 seconds").aggregate("sliding", **NUMBERS).write(
        "sliding", console.sink()
    )
    updates = keyed.window(sliding("10 seconds", "5 seconds"), emit="updates").aggregate("updates", **NUMBERS)
    updates.write("updates", console.sink())
    keyed.window(session("6 seconds")).aggregate("sessions", **NUMBERS).write("sessions", console.sink())
    keyed.window(tumbling("15 seconds")).process(Gathered).write("gathered", console.sink())
    return pipeline


@examples(4)
@given(EVENTS, JITTER, CUTS, steps())
def test_every_kind_of_window_equals_loops_over_all_rows(
    events: list[Event], jitter: list[int], cuts: list[int], steps: list[Step]
) -> None:
    epochs = [{"rows": input_rows(part)} for part in cut(arriving(events, jitter), cuts)]
    with Life(every_window(), {"rows": ROWS}) as life:
        life.live([*epochs, {"rows": far()}], steps)
        shown = {name: life.all_of(name) for name in ("tumbling", "sliding", "updates", "sessions", "gathered")}
        assert not life.late
    rows = exact(events)
    assert windows(shown["tumbling"], "rows", "n") == sums(in_sliding(rows, 10 * SECOND, 10 * SECOND))
    assert windows(shown["sliding"], "rows", "n") == sums(in_sliding(rows, 10 * SECOND, 4 * SECOND))
    assert windows(shown["sessions"], "rows", "n") == sums(in_sessions(rows, 6 * SECOND))
    newest = {(row["key"], row["window_start"]): row for row in shown["updates"]}
    assert windows(list(newest.values()), "rows", "n") == sums(in_sliding(rows, 10 * SECOND, 5 * SECOND))
    gathered = in_sliding(rows, 15 * SECOND, 15 * SECOND).items()
    assert windows(shown["gathered"], "numbers") == Counter((*window, str(sorted(ns))) for window, ns in gathered)


def chain() -> Pipeline:
    """Three windowed operators, and a left interval join followed by a window."""
    pipeline = Pipeline("chain")
    rows, others = source(pipeline, "rows", ROWS), source(pipeline, "others", OTHERS)
    first = rows.key_by("key").window(sliding("10 seconds", "4 seconds"), "9 seconds").aggregate("first", **NUMBERS)
    second = first.key_by("key").window(tumbling("12 seconds"), "5 seconds").aggregate("second", **NUMBERS)
    third = second.key_by("key").window(session("5 seconds")).aggregate("third", **NUMBERS)
    near = rows.join(others, on="key", within=("-5 seconds", "8 seconds"), how="left", name="near")
    near_windows = (
        near.key_by("key").window(tumbling("10 seconds")).aggregate("matched", pairs="count(other)", **NUMBERS)
    )
    for name, stream in {"first": first, "second": second, "third": third, "matched": near_windows}.items():
        stream.write(name, console.sink())
    return pipeline


@examples(4)
@given(EVENTS, EVENTS, JITTER, MANY_CUTS, MANY_CUTS, steps(2, 8))
def test_chained_operators_equal_loops_over_all_rows(
    events: list[Event], others: list[Event], jitter: list[int], cuts: list[int], more: list[int], steps: list[Step]
) -> None:
    left, right = cut(arriving(events, jitter), cuts), cut(arriving(others, jitter[::-1]), more)
    epochs = [
        {
            "rows": input_rows(left[number]) if number < len(left) else [],
            "others": input_rows(right[number], OTHERS) if number < len(right) else [],
        }
        for number in range(max(len(left), len(right)))
    ]
    with Life(chain(), {"rows": ROWS, "others": OTHERS}) as life:
        life.live([*epochs, {"rows": far(), "others": far(OTHERS)}], steps)
        shown = {name: life.all_of(name) for name in ("first", "second", "third", "matched")}
        assert not life.late
    first = in_sliding(exact(events), 10 * SECOND, 4 * SECOND)
    second = in_sliding(results(first), 12 * SECOND, 12 * SECOND)
    third = in_sessions(results(second), 5 * SECOND)
    for name, found in {"first": first, "second": second, "third": third}.items():
        assert windows(shown[name], "rows", "n") == sums(found), name
    rows = exact(events)
    pairs = joined(rows, exact(others), -5 * SECOND, 8 * SECOND)
    partners = Counter(id(one) for one, _ in pairs)
    by_row = in_sliding([Event(row.key, row.time, n) for n, row in enumerate(rows)], 10 * SECOND, 10 * SECOND)
    expected: Counter[tuple[Any, ...]] = Counter()
    for window, numbers in by_row.items():
        matched = [partners[id(rows[n])] for n in numbers]
        times = [max(count, 1) for count in matched]
        total = sum(count * rows[n].number for count, n in zip(times, numbers, strict=True))
        expected[*window, sum(matched), sum(times), total] += 1
    assert windows(shown["matched"], "pairs", "rows", "n") == expected


@examples(8)
@given(EVENTS, EVENTS, JITTER, TAKEN, steps())
def test_windows_wait_for_a_lagging_partition(
    ahead: list[Event], behind: list[Event], jitter: list[int], taken: list[tuple[int, int]], steps: list[Step]
) -> None:
    """The partitions may be minutes apart; no row of either is late."""
    pipeline = Pipeline("partitions")
    rows = source(pipeline, "rows", ROWS)
    found = rows.key_by("key").window(tumbling("10 seconds")).aggregate("windows", **NUMBERS)
    found.write("windows", console.sink())
    left = {"0": arriving(ahead, jitter), "1": arriving(behind, jitter[::-1])}
    epochs = []
    for counts in [*taken, (25, 0), (0, 25)]:
        epoch: list[Row] = []
        for (name, mine), count in zip(left.items(), counts, strict=True):
            epoch += of_partition(name, input_rows(mine[:count]))
            del mine[:count]
        epochs.append({"rows": epoch})
    last = [*of_partition("0", far()), *of_partition("1", far())]
    with Life(pipeline, {"rows": ROWS}, {"rows": ("0", "1")}) as life:
        life.live([*epochs, {"rows": last}], steps)
        assert windows(life.all_of("windows"), "rows", "n") == sums(
            in_sliding(exact([*ahead, *behind]), 10 * SECOND, 10 * SECOND)
        )
        assert not life.late


IDLE_AFTER = 60
MOMENTS = st.lists(
    st.tuples(
        st.integers(0, 90),
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, DELAY)), max_size=3),
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, DELAY)), max_size=2),
        st.booleans(),
        st.integers(-90, 90),
    ),
    min_size=2,
    max_size=10,
)
"""For each epoch: the advance of time, the rows of both sources by age, whether the second source delivers, and the
error of the driver's clock."""


def united() -> Pipeline:
    pipeline = Pipeline("union")
    one, two = (source(pipeline, name, ROWS, idle_after=f"{IDLE_AFTER} seconds") for name in ("one", "two"))
    found = one.union(two).key_by("key").window(tumbling("10 seconds")).aggregate("windows", **NUMBERS)
    found.write("windows", console.sink())
    found.late.write("late", console.sink())
    return pipeline


@examples(10)
@given(MOMENTS, steps(), st.sampled_from([0, 0, 300]))
def test_a_source_that_resumes_after_idleness_is_not_late(
    moments: list[tuple[int, list[Any], list[Any], bool, int]], schedule: list[Step], older: int
) -> None:
    """``older``: additional age of the second source's rows. Some of them are late then; no row is lost."""
    now, everything = 0, []
    with Life(united(), {"one": ROWS, "two": ROWS}) as life:
        for number, (moved, first, second, delivers, clock_error) in enumerate(moments):
            now += moved
            one = [Event(key, now - age, number) for key, age in first]
            two = [Event(key, now - age - older, number) for key, age in second if delivers]
            everything += [*one, *two]
            step = schedule[number % len(schedule)]
            life.epoch(
                Step(step.disruption, step.parallelism, now + clock_error), one=input_rows(one), two=input_rows(two)
            )
        life.epoch(Step(clock=now), one=far(), two=far())
        life.settle()
        late, shown = life.all_of("late"), life.all_of("windows")
        bounds = [manifest.clock.places["windows"].late for manifest in life.manifests]
        late_by_epoch = life.shown("late")
    if not older:
        assert not late
    for bound, rows in zip(bounds, late_by_epoch, strict=True):
        for row in rows:
            assert microseconds(row["at"]) // (10 * SECOND) * 10 * SECOND + 10 * SECOND <= bound
    apart = Counter(Event(row["key"], microseconds(row["at"]), row["n"]) for row in late)
    on_time = list((Counter(exact(everything)) - apart).elements())
    assert windows(shown, "rows", "n") == sums(in_sliding(on_time, 10 * SECOND, 10 * SECOND))


def test_windows_continue_without_an_idle_source() -> None:
    """They wait for it during the first minute, then no longer, and again after its next row."""
    with Life(united(), {"one": ROWS, "two": ROWS}) as life:
        life.epoch(Step(clock=0), one=input_rows([Event("a", 0, 1)]), two=input_rows([Event("b", 0, 1)]))
        life.epoch(Step(clock=59), one=input_rows([Event("a", 59, 1)]))
        life.epoch(Step(clock=59.5), one=input_rows([Event("a", 60, 1)]))
        assert not life.all_of("windows")
        life.epoch(Step(clock=60))
        assert {row["key"] for row in life.all_of("windows")} == {"a", "b"}
        life.epoch(Step(clock=61), two=input_rows([Event("b", 41, 1)]))
        life.epoch(Step(clock=62), one=input_rows([Event("a", 300, 1)]))
        life.settle()
        assert not life.late and microseconds(BEGIN) + 40 * SECOND == life.manifests[-1].clock.places["windows"].fire
