"""T2 of ``top``: ranks compared with sorted rows; the output of an epoch; ties."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.operators.top.work import RANK, TopWork
from epochal.state.table import Column, StateKind, StateTable

KEY = (Column(name="id", type="string"),)
VALUE = (
    Column(name="price", type="double"),
    Column(name="n", type="bigint"),
    Column(name="tags", type="array<string>"),
)
TABLE = StateTable(id="operator", operator="operator", kind=StateKind.MAP, key=KEY, sub_key=(RANK,), value=VALUE)
OUTPUT = pa.schema([column.to_arrow() for column in (*KEY, RANK, *VALUE)])
ROW = pa.schema([column.to_arrow() for column in (*VALUE[:1], *KEY, *VALUE[1:])])


def row(key: str | None, price: float | None, n: int = 0, tags: list[str] | None = None) -> dict[str, Any]:
    return {"price": price, "id": key, "n": n, "tags": tags}


def operator_of(make_operator: Any, count: int, backend: str = "heap", descending: bool = True) -> Any:
    work = TopWork(TABLE, ("id",), count, ("price",), descending)
    return make_operator(work, KEY, ROW, OUTPUT, backend, tables=(TABLE,))


def ranks(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((each["id"] or "", each["rank"], each["price"]) for each in rows)


@pytest.mark.parametrize("backend", ["heap", "lmdb"])
def test_an_epoch_emits_the_ranks_whose_row_has_changed(make_operator: Any, backend: str) -> None:
    operator = operator_of(make_operator, 2, backend)
    first = operator.run([row("a", 5), row("a", 9), row("a", 1), row(None, 3, tags=["x"])])
    assert ranks(first) == [("", 1, 3), ("a", 1, 9), ("a", 2, 5)]
    assert next(each for each in first if each["id"] is None) == {"rank": 1, **row(None, 3, tags=["x"])}
    assert ranks(operator.run([row("a", 7), row("a", 2)])) == [("a", 2, 7)]
    assert ranks(operator.run([row("a", 10), row("a", 1), row("b", 0)])) == [("a", 1, 10), ("a", 2, 9), ("b", 1, 0)]
    assert operator.run([row("a", 3)]) == []
    assert operator.run([]) == []
    assert {key: values[0] for key, values in operator.state(TABLE).items()} == {
        (None, 1): 3,
        ("a", 1): 10,
        ("a", 2): 9,
        ("b", 1): 0,
    }


def test_null_is_last_and_nan_the_greatest_number(make_operator: Any) -> None:
    prices = [None, 1.0, math.nan, math.inf]
    shown = [
        str(each["price"])
        for each in sorted(
            operator_of(make_operator, 4).run([row("a", price) for price in prices]), key=lambda each: each["rank"]
        )
    ]
    assert shown == ["nan", "inf", "1.0", "None"]
    shown = [
        str(each["price"])
        for each in sorted(
            operator_of(make_operator, 4, descending=False).run([row("a", price) for price in prices]),
            key=lambda each: each["rank"],
        )
    ]
    assert shown == ["1.0", "inf", "nan", "None"]


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 3), st.sampled_from([None, ["x"], ["y"]])),
    max_size=20,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(epochs=st.lists(ROWS, min_size=1, max_size=4), count=st.integers(1, 4))
def test_ranks_equal_those_of_all_rows_for_any_division_into_epochs(
    make_operator: Any, epochs: Any, count: int
) -> None:
    cut, whole = operator_of(make_operator, count), operator_of(make_operator, count)
    newest: dict[Any, Any] = {}
    for events in epochs:
        emitted = cut.run([row(*event) for event in events])
        newest |= {(each["id"], each["rank"]): each for each in emitted}
        assert len(emitted) == len({(each["id"], each["rank"]) for each in emitted})
    rows = [row(*event) for events in epochs for event in events]
    assert newest == {(each["id"], each["rank"]): each for each in whole.run(rows)}
    assert cut.state(TABLE) == whole.state(TABLE)
    for key in "ab":
        best = sorted((-each["price"], each["n"]) for each in rows if each["id"] == key)[:count]
        found = sorted((rank, values) for (id, rank), values in cut.state(TABLE).items() if id == key)
        assert [(-values[0], values[1]) for _, values in found] == best
