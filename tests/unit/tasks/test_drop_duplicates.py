"""T2 of ``drop_duplicates``: emitted rows compared with a loop over rows; ties; expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.contracts.conditions import Watermarks
from epochal.operators.distinct.plan import SEEN
from epochal.operators.distinct.work import FIRST_AT, NEVER, DropDuplicatesWork, kept
from epochal.state.expiry import Expiry
from epochal.state.table import Column, StateKind, StateTable

KEY = (Column(name="id", type="string"), Column(name="kind", type="int"))
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = 60_000_000
ROW = pa.schema(
    [
        ("id", pa.string()),
        ("kind", pa.int32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("n", pa.int64()),
    ]
)


def row(
    key: str | None, kind: int | None = 0, minute: int = 0, n: int = 0, tags: list[str] | None = None
) -> dict[str, Any]:
    return {"id": key, "kind": kind, "at": START + timedelta(minutes=minute), "tags": tags, "n": n}


def operator_of(make_operator: Any, within: int | None, backend: str = "heap") -> Any:
    value = SEEN if within is None else FIRST_AT
    expires = None if within is None else Expiry(clock="event", column=value.name, after=within * MINUTE)
    table = StateTable(
        id="operator", operator="operator", kind=StateKind.VALUE, key=KEY, value=(value,), expires=expires
    )
    after = None if within is None else within * MINUTE
    work = DropDuplicatesWork(table, ("id", "kind"), None if within is None else "at", after)
    return make_operator(work, KEY, ROW, ROW, backend, tables=(table,))


def plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((each["id"] or "", each["kind"] or 0, each["n"]) for each in rows)


@pytest.mark.parametrize("backend", ["heap", "lmdb"])
def test_each_key_is_emitted_once_with_all_columns(make_operator: Any, backend: str) -> None:
    operator = operator_of(make_operator, None, backend)
    first = operator.run([row("a", n=1), row(None, None, n=2), row("a", 1, n=3, tags=["x"]), row(None, None, n=9)])
    assert plain(first) == [("", 0, 2), ("a", 0, 1), ("a", 1, 3)]
    assert next(each for each in first if each["n"] == 3) == row("a", 1, n=3, tags=["x"])
    assert plain(operator.run([row("a", n=0), row("b", n=5), row(None, None)])) == [("b", 0, 5)]
    assert operator.run([]) == []


def test_the_first_row_in_sort_order_of_an_epoch_is_emitted(make_operator: Any) -> None:
    rows = [row("a", minute=1, n=2, tags=["y"]), row("a", minute=1, n=2, tags=["x"]), row("a", minute=1, n=3)]
    answers = [operator_of(make_operator, None).run(order) for order in (rows, rows[::-1], rows[1:] + rows[:1])]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0]["n"] == 2
    timed = operator_of(make_operator, 10).run([row("a", minute=3, n=1), row("a", minute=2, n=9)])
    assert plain(timed) == [("a", 0, 9)]


def test_rows_outside_the_interval_are_emitted_and_keys_expire(make_operator: Any) -> None:
    operator = operator_of(make_operator, 10)
    assert plain(operator.run([row("a", minute=m, n=m) for m in (25, 0, 9, 10, 19, 21)])) == [
        ("a", 0, 0),
        ("a", 0, 10),
        ("a", 0, 21),
    ]
    micros = int(START.timestamp()) * 1_000_000
    operator.watermarks = Watermarks(late=micros, fire=micros + 31 * MINUTE)
    assert operator.run([row("a", minute=30), row("a", minute=20)]) == []
    operator.watermarks = Watermarks(late=micros + 31 * MINUTE, fire=micros + 31 * MINUTE)
    assert plain(operator.run([row("a", minute=31, n=31)])) == [("a", 0, 31)]


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(epochs=st.lists(EVENTS, min_size=1, max_size=3), within=st.integers(1, 30))
def test_emitted_rows_equal_those_of_a_loop_over_rows(make_operator: Any, epochs: Any, within: int) -> None:
    operator = operator_of(make_operator, within)
    until: dict[str, int] = {}
    for events in epochs:
        expected = []
        for key, minute in sorted(events, key=lambda event: event[1]):
            if minute >= until.get(key, 0):
                expected.append((key, 0, minute))
                until[key] = minute + within
        emitted = operator.run([row(key, minute=minute, n=minute) for key, minute in events])
        assert plain(emitted) == sorted(expected)


def test_a_key_with_many_emitted_rows_takes_linear_time() -> None:
    times = np.arange(100_000) * 7
    mask = kept(np.zeros(100_000, np.int64), times, np.array([NEVER]), 70)
    assert np.flatnonzero(mask).tolist() == list(range(0, 100_000, 10))
