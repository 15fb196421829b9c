"""Windows are assigned by Spark and over arrays: both equal a definition by loops, and Spark's ``window``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from epochal.contracts.conditions import BEGINNING, EARLIEST, END, LATEST
from epochal.declarations import event_time
from epochal.declarations.expressions import to_column
from epochal.declarations.intervals import DAY, HOUR, LONGEST, MINUTE, fixed_interval, written_interval
from epochal.declarations.windows import FixedGrid, GridWindows, cumulative, session, sliding, tumbling
from epochal.operators.windows import sessions
from epochal.state.watermarks import behind
from epochal.tasks.windows import (
    assigned,
    boundaries,
    closed_until,
    last_ends,
    late_before,
    occupied,
    pane_indices,
    pane_starts,
    panes_of,
    timestamps,
)
from tests.unit.property.every_type import SHARE

FIXED = {
    "hours": tumbling("1 hour"),
    "days by six": tumbling("1 day", offset="6 hours"),
    "weeks": tumbling("7 days", offset="-3 days"),
    "sliding": sliding("1 hour", "5 minutes"),
    "uneven": sliding("10 minutes", "4 minutes", offset="-1 minute"),
    "a slide as long as the window": sliding("90 seconds", "90 seconds"),
}
CUMULATIVE = {
    "so far today": cumulative("1 day", "6 hours"),
    "so far, from six": cumulative("1 day", "8 hours", offset="6 hours"),
}
CALENDAR = {
    "days": tumbling("1 day", zone="Europe/Berlin"),
    # On one day a year 02:30 does not exist and becomes 03:30, so that 03:00 belongs to the previous day.
    "days from half past two": tumbling("1 day", offset="150 minutes", zone="Europe/Berlin"),
    "days from six": tumbling("1 day", offset="6 hours", zone="America/New_York"),
    # Until 2011 the clocks went back at 00:01, so that a date occurred twice.
    "days with a repeated date": tumbling("1 day", zone="America/St_Johns"),
    "days that begin at one": tumbling("1 day", zone="America/Sao_Paulo"),
    "a missing day": tumbling("1 day", zone="Pacific/Apia"),
    "weeks": tumbling("1 week", zone="Asia/Kolkata"),
    "weeks from Sunday": tumbling("1 week", offset="-1 day", zone="Australia/Lord_Howe"),
    "months": tumbling("1 month", zone="Europe/Berlin"),
    "months from the third": tumbling("1 month", offset="50 hours", zone="America/St_Johns"),
    "quarters": tumbling("3 months", zone="Asia/Tehran"),
    "the last week, daily": sliding("7 days", "1 day", zone="Europe/Berlin"),
    "uneven days": sliding("5 days", "2 days", zone="America/New_York"),
    "the last year, quarterly": sliding("1 year", "3 months", zone="Europe/London"),
    "so far this week": cumulative("1 week", "1 day", zone="America/Sao_Paulo"),
    "so far this year": cumulative("1 year", "1 month", zone="UTC"),
}
EVERY = {**FIXED, **CUMULATIVE, **{f"calendar: {name}": windows for name, windows in CALENDAR.items()}}

FROM, TO = datetime(1971, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Boundaries and a microsecond beside them, around every clock change named above, and before 1970.
MOMENTS = [
    *(f"{day}T{time}" for day in ("2024-03-31", "2024-10-27") for time in ("00:00", "01:00", "22:00", "23:00")),
    *(f"2009-11-01T0{time}" for time in ("2:30", "2:31", "2:45", "3:00", "3:29", "3:30", "3:31")),
    *(f"2011-12-{time}" for time in ("29T10:00", "30T09:59", "30T10:00", "30T12:00", "31T10:00")),
    *("2018-11-04T02:59", "2018-11-04T03:00", "2018-11-05T02:00", "2024-02-29T23:00", "2000-01-01T00:00"),
]


def micros(moment: datetime) -> int:
    return (moment - UNIX_EPOCH) // MICROSECOND


def named_moments() -> Iterator[int]:
    for text in MOMENTS:
        at = micros(datetime.fromisoformat(text).replace(tzinfo=UTC))
        yield from (at - 1, at, at + 1)
    yield from (-1, 0, 1)


TIMES = st.lists(
    st.sampled_from(list(named_moments())) | st.integers(micros(FROM), micros(TO)), min_size=1, max_size=40
)
BEFORE_1970 = st.lists(st.integers(-60 * 365 * DAY, 0), min_size=1, max_size=40)


def by_definition(windows: GridWindows, time: int) -> list[tuple[int, int]]:
    """All windows that contain ``time``, found one by one from the boundaries around it."""
    here = int(pane_indices(windows, np.array([time]))[0])
    ahead = windows.panes + windows.every
    edge = {index: boundary(windows, index) for index in range(here - ahead, here + ahead + 1)}
    found = []
    for first in range(here - windows.panes, here + 1):
        if first % windows.every == 0:
            lengths = range(1, windows.panes + 1) if windows.cumulative else [windows.panes]
            found += [(edge[first], edge[first + n]) for n in lengths if edge[first] <= time < edge[first + n]]
    return sorted(found)


def boundary(windows: GridWindows, index: int) -> int:
    grid = windows.grid
    if isinstance(grid, FixedGrid):
        return grid.origin + index * grid.pane
    zone, shift = ZoneInfo(grid.zone), timedelta(microseconds=grid.shift)
    if grid.months:
        month = index * grid.months
        local = datetime(1970 + month // 12, month % 12 + 1, 1, tzinfo=UTC) + shift
    else:
        local = UNIX_EPOCH + timedelta(days=grid.origin + index * grid.days) + shift
    return micros(local.replace(tzinfo=zone).astimezone(UTC))


def as_lists(windows: GridWindows, times: list[int]) -> list[list[tuple[int, int]]]:
    found = assigned(windows, np.array(times, np.int64))
    lists: list[list[tuple[int, int]]] = [[] for _ in times]
    for row, start, end in zip(found.rows.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True):
        lists[row].append((start, end))
    return lists


@pytest.mark.parametrize("name", EVERY)
@given(TIMES | BEFORE_1970)
def test_vectorised_windows_equal_their_definition(name: str, times: list[int]) -> None:
    windows = EVERY[name]
    assert as_lists(windows, times) == [by_definition(windows, time) for time in times]
    panes = pane_indices(windows, np.array(times))
    assert (boundaries(windows, panes) <= times).all() and (times < boundaries(windows, panes + 1)).all()


@pytest.mark.parametrize("name", EVERY)
@given(TIMES)
def test_panes_and_windows_are_consistent(name: str, times: list[int]) -> None:
    windows = EVERY[name]
    starts = np.unique(pane_starts(windows, np.array(times)))
    assert (pane_starts(windows, starts) == starts).all()
    found = assigned(windows, starts)
    rows, panes = panes_of(windows, found.starts, found.ends)
    for position, start in enumerate(starts[found.rows].tolist()):
        mine = panes[rows == position].tolist()
        assert start in mine
        assert mine[0] == found.starts[position] and mine == sorted(set(mine))
        assert len(mine) <= windows.panes
        if not windows.cumulative and "missing" not in name:
            assert len(mine) == windows.panes
        assert all(found.starts[position] <= pane < found.ends[position] for pane in mine)


@pytest.mark.parametrize("name", EVERY)
@given(TIMES, st.integers(micros(FROM), micros(TO)), st.sampled_from([0, 1, 10 * MINUTE, 36 * HOUR]), st.data())
def test_one_bound_separates_late_rows(
    name: str, times: list[int], late: int, lateness: int, data: st.DataObject
) -> None:
    windows = EVERY[name]
    late = data.draw(st.sampled_from([late, *times]))
    near = [*times, *(late - lateness + apart for apart in (-DAY, -HOUR, -1, 0, 1, HOUR, DAY))]
    bound = late_before(windows, late, lateness)
    for time, mine in zip(near, as_lists(windows, near), strict=True):
        assert (time < bound) == all(end + lateness <= late for _, end in mine)


@pytest.mark.parametrize("name", EVERY)
@given(TIMES, st.integers(micros(FROM), micros(TO)), st.sampled_from([0, 1, 36 * HOUR]), st.data())
def test_one_bound_separates_closed_windows(
    name: str, times: list[int], watermark: int, lateness: int, data: st.DataObject
) -> None:
    windows = EVERY[name]
    watermark = data.draw(st.sampled_from([watermark, *times]))
    until = closed_until(windows, watermark, lateness)
    near = [*times, *(watermark - lateness + apart for apart in (-DAY, -HOUR, -1, 0, 1, HOUR, DAY))]
    ends = [end for mine in as_lists(windows, near) for _, end in mine]
    for end in ends:
        assert (end <= until) == (end + lateness <= watermark)
    assert last_ends(windows, np.array(near)).tolist() == [max(mine)[1] for mine in as_lists(windows, near)]


@pytest.mark.parametrize("name", EVERY)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=30), st.integers(0, 40))
def test_occupied_windows_are_those_of_the_rows_of_each_key(
    name: str, places: list[tuple[int, int]], width: int
) -> None:
    windows = EVERY[name]
    here = int(pane_indices(windows, np.array([micros(datetime(2011, 12, 20, tzinfo=UTC))]))[0])
    rows = sorted({(key, int(boundaries(windows, np.array([here + pane]))[0])) for key, pane in places})
    keys, panes = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    after, until = (int(boundaries(windows, np.array([here + index]))[0]) for index in (10, 10 + width))
    expected: dict[tuple[int, int, int], list[int]] = {}
    for row, mine in enumerate(as_lists(windows, panes.tolist())):
        for start, end in mine:
            if after < end <= until:
                expected.setdefault((end, start, rows[row][0]), []).append(row)
    found = occupied(windows, keys, panes, after, until)
    firsts, lasts = found.firsts.tolist(), found.lasts.tolist()
    names = [(end, start, rows[f][0]) for end, start, f in zip(found.ends, found.starts, firsts, strict=True)]
    assert names == sorted(expected)
    assert [list(range(first, last)) for first, last in zip(firsts, lasts, strict=True)] == [
        expected[name] for name in names
    ]


def spark_windows(frame_times: list[int], spark: SparkSession, columns: dict[str, object]) -> list[dict[str, object]]:
    frame = spark.createDataFrame(pa.table({"the time": timestamps(np.array(frame_times))}))
    return [row.asDict(recursive=True) for row in frame.select(*(c.alias(n) for n, c in columns.items())).collect()]  # type: ignore[attr-defined]


def in_micros(column: object) -> object:
    return F.transform(
        column,  # type: ignore[arg-type]
        lambda one: F.array(F.unix_micros(one["start"]), F.unix_micros(one["end"])),
    )


@pytest.mark.parametrize("session_zone", [pytest.param("UTC", marks=pytest.mark.long), "America/Los_Angeles"])
def test_spark_assigns_the_same_windows(spark: SparkSession, session_zone: str, run_seed: int) -> None:
    """The quick profile tests a sample selected by the seed: Spark needs long to plan all expressions."""
    numbers = np.random.default_rng(11)
    times = [*named_moments(), *numbers.integers(micros(FROM), micros(TO), 500).tolist()]
    columns: dict[str, object] = {}
    some = {name: EVERY[name] for name in random.Random(run_seed).sample(sorted(EVERY), len(EVERY) // SHARE)}
    for name, windows in some.items():
        columns[name] = in_micros(to_column(event_time.all_windows(windows, "the time")))
        pane = [to_column(make(windows, "the time")) for make in (event_time.pane_start, event_time.pane_end)]
        columns[f"pane of {name}"] = F.array(*map(F.unix_micros, pane))
    spark.conf.set("spark.sql.session.timeZone", session_zone)
    try:
        rows = spark_windows(times, spark, columns)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    for name, windows in some.items():
        mine = as_lists(windows, times)
        panes = pane_indices(windows, np.array(times))
        bounds = list(zip(boundaries(windows, panes).tolist(), boundaries(windows, panes + 1).tolist(), strict=True))
        for row, expected, pane in zip(rows, mine, bounds, strict=True):
            assert [tuple(one) for one in row[name]] == expected, name  # type: ignore[attr-defined]
            assert tuple(row[f"pane of {name}"]) == pane, name  # type: ignore[arg-type]


def test_fixed_windows_equal_those_of_spark(spark: SparkSession) -> None:
    numbers = np.random.default_rng(12)
    times = [*named_moments(), *numbers.integers(-(10**15), 10**15, 300).tolist()]
    frame = spark.createDataFrame(pa.table({"row": list(range(len(times))), "ts": timestamps(np.array(times))}))
    texts = {
        "hours": ("1 hour", None, None),
        "days by six": ("1 day", None, "6 hours"),
        "weeks": ("7 days", None, "-3 days"),
        "sliding": ("1 hour", "5 minutes", None),
        "uneven": ("10 minutes", "4 minutes", "-1 minute"),
    }
    for name, (size, slide, offset) in texts.items():
        theirs: list[list[tuple[int, int]]] = [[] for _ in times]
        column = F.window("ts", size, slide, offset)
        rows = frame.select("row", column.alias("window"))
        for row, start, end in rows.selectExpr("row", "unix_micros(window.start)", "unix_micros(window.end)").collect():
            theirs[row].append((start, end))
        assert [sorted(one) for one in theirs] == as_lists(FIXED[name], times), name


@pytest.mark.alternating(2)
def test_rows_without_a_time_are_in_no_window(spark: SparkSession) -> None:
    frame = spark.sql("SELECT CAST(NULL AS TIMESTAMP) AS ts")
    makers = (event_time.all_windows, event_time.pane_start, event_time.pane_end)
    columns = {
        f"{make.__name__} of {name}": to_column(make(windows, "ts"))
        for name, windows in EVERY.items()
        for make in makers
    }
    (row,) = frame.select(*(column.alias(name) for name, column in columns.items())).collect()
    assert row.asDict() == dict.fromkeys(columns)


def test_filters_select_rejected_and_late_rows(spark: SparkSession) -> None:
    far = ", ".join(f"(timestamp_micros({time}L))" for time in (-(2**63) + 1, 2**63 - 1))
    frame = spark.sql(f"SELECT * FROM VALUES (NULL), (timestamp_micros(-1)), (timestamp_micros(7)), {far} AS v(ts)")
    for bound in (-(2**62), -1, 7, 2**62 - 1):
        rows = frame.select(
            to_column(event_time.rejected("ts", bound)), to_column(event_time.before("ts", bound))
        ).collect()
        assert [row[0] for row in rows] == [True, bound < -1, bound < 7, True, True]
        assert [row[1] for row in rows] == [None, bound > -1, bound > 7, True, False]
    bounds = event_time.session_bounds(session("5 minutes"), "ts")
    row = frame.where("ts = timestamp_micros(7)").select(*(F.unix_micros(to_column(one)) for one in bounds)).first()
    assert row == (7, 7 + 5 * MINUTE)


def test_times_of_the_longest_windows_fit_into_64_bits() -> None:
    length = written_interval(LONGEST)
    watermarks = [behind(time, LONGEST) for time in (EARLIEST, LATEST)]
    for windows in (tumbling(length), sliding(length, written_interval(LONGEST // 8)), cumulative(length, length)):
        for watermark in watermarks:
            assert (
                BEGINNING < late_before(windows, watermark, LONGEST) <= closed_until(windows, watermark, LONGEST) < END
            )
        times = np.array([EARLIEST, LATEST])
        ends = last_ends(windows, pane_starts(windows, times)) + LONGEST
        assert (ends > times).all() and ends.dtype == np.int64
    for watermark in watermarks:
        assert BEGINNING < sessions.late_before(LONGEST, watermark, LONGEST) < END
    assert sessions.closes_at(np.array([LATEST + LONGEST]), LONGEST) > LATEST + LONGEST


INTERVALS = [
    *(
        "1 hour",
        " 1  HOUR\t",
        "2 hours 30 minutes",
        "interval 1 day",
        "-1 hour",
        "- 1 hour",
        "1 day -1 hour",
        "+5 seconds",
    ),
    *(
        "1.5 seconds",
        ".5 second",
        "-.000001 seconds",
        "1. second",
        "1.123456789 seconds",
        "-1.9999999 seconds",
        "1 week",
    ),
    *("1 millisecond", "3 microseconds", "90 minutes 1 hour", "1 HOURS", "0 seconds", "10 days 10 days"),
    *(
        "",
        "interval",
        "intervals 1 day",
        "1",
        "hour",
        "1hour",
        "1 hour,",
        "1.5 hours",
        "1.1234567890 seconds",
        "1 fortnight",
    ),
    *(". second", "1 hour 5", "one hour", "1 hourss", "--1 hour", "1 nanosecond", "1e3 seconds", "1 day and 1 hour"),
]


def test_intervals_are_parsed_as_in_spark(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(text,) for text in INTERVALS], "text string")
    length = "unix_micros(timestamp_micros(0) + try_cast(text AS INTERVAL))"
    for row in frame.selectExpr("text", f"{length} AS length").collect():
        try:
            mine = fixed_interval("size", row.text, least=-(2**62))
        except event_time.PipelineError:
            mine = None
        assert mine == row.length, row.text
