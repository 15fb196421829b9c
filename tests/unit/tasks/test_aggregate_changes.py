"""T2 of ``aggregate`` over changes: retraction of rows, deletion of keys without rows, minimum and maximum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochal.aggregates.change_rows import IS, WAS, KeyRows
from epochal.aggregates.mergeable import MergeableAggregate
from epochal.aggregates.plan import AggregationPlan, Part
from epochal.aggregates.retraction import ROWS, TIMES, VALUE, LeastOrGreatest, SignedCount, SignedSum
from epochal.declarations.expressions import column
from epochal.engine.failures import failure_of
from epochal.errors import EpochAborted
from epochal.operators.aggregate.changes_work import AggregateChangesWork, Multiset, multiset_table
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.types import arrow_type

KEY = (Column(name="key", type="string"),)
TYPES = {
    "string": [*"abz", "", "a\x00", "a\x01b", "\x02", "é", "\U0010ffff", "aa"],
    "double": [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan, 5e-324, -1e300],
    "bigint": [0, 1, -1, 255, 256, -(2**63), 2**63 - 1, 7],
    "decimal(10,2)": [Decimal(text) for text in ("0.00", "-1.50", "99999999.99", "-99999999.99", "1.00", "0.01")],
    "date": [date.min, date(1969, 12, 31), date(1970, 1, 1), date.max],
}
Rows = list[tuple[str, Any]]


def part(name: str, aggregate: MergeableAggregate, *columns: str) -> Part:
    return Part(name, aggregate, aggregate.partials(), columns or (name,))


class Driven:
    """The operator over values of one type, and the current rows."""

    def __init__(self, make_operator: Any, type: str, kind: str = "heap", changes: bool = False) -> None:
        parts = (
            part("n", SignedCount()),
            part("total", SignedSum(column("v"), "bigint"), "total_sum", "total_count"),
            part("least", LeastOrGreatest(column("v"), largest=False)),
            part("most", LeastOrGreatest(column("v"), largest=True)),
            part(ROWS, SignedCount()),
        )
        types = {"n": "bigint", "total_sum": "bigint", "total_count": "bigint", "least": type, "most": type}
        value = tuple(Column(name=name, type=of) for name, of in {**types, ROWS: "bigint"}.items())
        self.table = StateTable(id="operator", operator="operator", kind=StateKind.AGGREGATE, key=KEY, value=value)
        plan = AggregationPlan("operator", self.table, parts, ())
        multisets = tuple(
            Multiset(name, multiset_table("operator", name, KEY), name == "most") for name in ("least", "most")
        )
        self.tables = (self.table, *(multiset.table for multiset in multisets))
        rows = KeyRows(plan, () if changes else None)
        times = pa.list_(pa.struct([(VALUE, arrow_type(type)), (TIMES, pa.int64())]))
        sent = pa.schema([("key", pa.string()), *((each.name, arrow_type(each.type)) for each in value)])
        for name in ("least", "most"):
            sent = sent.set(sent.get_field_index(name), pa.field(name, times))
        sent = sent.set(sent.get_field_index("total_sum"), pa.field("total_sum", pa.decimal128(30, 0)))
        self.operator = make_operator(
            AggregateChangesWork(plan, rows, multisets), KEY, sent, rows.schema, tables=self.tables, kind=kind
        )
        self.current: dict[str, Counter[Any]] = {}

    def run(self, added: Rows, removed: Rows) -> list[dict[str, Any]]:
        """Run one epoch twice; the second attempt is committed."""
        sent = [partial(key, added, removed) for key in sorted({key for key, _ in added + removed})]
        first, _ = self.operator.attempt(sent)
        output: list[dict[str, Any]] = self.operator.run(sent)
        assert repr(first) == repr(output)
        for rows, change in ((added, 1), (removed, -1)):
            for key, value in rows:
                self.current.setdefault(key, Counter())[one(value)] += change
        self.current = {key: +values for key, values in self.current.items() if +values}
        return output


def one(value: Any) -> Any:
    """A key that is equal for values that Spark regards as equal."""
    return "nan" if value != value else value


def partial(key: str, added: Rows, removed: Rows) -> dict[str, Any]:
    signed = [(value, 1) for of, value in added if of == key] + [(value, -1) for of, value in removed if of == key]
    values = [{VALUE: value, TIMES: times} for value, times in signed if value is not None]
    total = sum(each[TIMES] for each in values)
    rows = sum(times for _, times in signed)
    sums = {"total_sum": 3 * total if values else None, "total_count": total}
    return {"key": key, "n": rows, **sums, "least": values, "most": values, ROWS: rows}


def expected(values: Counter[Any]) -> tuple[Any, ...]:
    plain = [float("nan") if value == "nan" else value for value in values.elements() if value is not None]
    ordered = sorted(plain, key=lambda value: (value != value, value)) or [None]
    count = values.total()
    return count, 3 * len(plain) if plain else None, len(plain), ordered[0], ordered[-1], count


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[tuple[list[tuple[str, Any]], list[float]]]]:
    type = draw(st.sampled_from(sorted(TYPES)))
    row = st.tuples(st.sampled_from("kl"), st.sampled_from([None, *TYPES[type]]))
    epoch = st.tuples(st.lists(row, max_size=25), st.lists(st.floats(0, 1, exclude_max=True), max_size=25))
    return type, draw(st.lists(epoch, min_size=1, max_size=6))


@pytest.mark.parametrize("kind", ["heap", "lmdb"])
@settings(max_examples=settings.default.max_examples // 5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories())
def test_state_equals_that_of_the_rows_not_retracted(make_operator: Any, kind: str, history: Any) -> None:
    type, epochs = history
    driven = Driven(make_operator, type, kind)
    rows: Rows = []
    for added, places in epochs:
        rows += added
        removed = [rows.pop(int(place * len(rows))) for place in places if rows]
        before = set(driven.current)
        output = {row.pop("key"): row for row in driven.run(added, removed)}
        touched = {key for key, _ in added + removed}
        assert set(output) == {key for key in touched if key in before or key in driven.current}
        for key, row in output.items():
            assert (row.pop(WAS), row.pop(IS)) == (key in before, key in driven.current)
            assert repr(tuple(row.values())) == repr(expected(driven.current.get(key, Counter()))).replace(
                "-0.0", "0.0"
            )
        state = {key: values for (key,), values in driven.operator.state(driven.table).items()}
        shown = {key: expected(values) for key, values in driven.current.items()}
        assert repr(sorted(state.items())) == repr(sorted(shown.items())).replace("-0.0", "0.0")
        for table in driven.tables[1:]:
            kept = Counter(dict.fromkeys(driven.current, 0))
            kept.update(key for key, _ in driven.operator.state(table))
            assert kept == {key: len([v for v in values if v is not None]) for key, values in driven.current.items()}


def test_the_next_value_is_found_after_many_deleted_ones(make_operator: Any) -> None:
    driven = Driven(make_operator, "bigint", "lmdb")
    rows = [(key, number) for key in "kl" for number in range(200)]
    driven.run(rows, [])
    retracted = [("k", number) for number in range(150)] + [("l", number) for number in range(100, 200)]
    least_and_most = {row["key"]: (row["least"], row["most"]) for row in driven.run([("l", 50)], retracted)}
    assert least_and_most == {"k": (150, 199), "l": (0, 99)}
    (row,) = driven.run([("l", 300)], [("l", number) for number in range(100)] + [("l", 50)])
    assert (row["least"], row["most"]) == (300, 300)
    assert driven.run([], [("l", 300)])[0][IS] is False


def test_changes_include_previous_values(make_operator: Any) -> None:
    driven = Driven(make_operator, "string", changes=True)
    driven.run([("k", "b")], [])
    (row,) = driven.run([("k", "a")], [("k", "b")])
    assert (row["least"], row["__before_least"], row[WAS], row[IS]) == ("a", "b", True, True)
    (row,) = driven.run([], [("k", "a")])
    assert (row["least"], row["__before_least"], row[WAS], row[IS]) == (None, "a", True, False)
    assert driven.run([("k", "a")], [("k", "a")]) == []
    assert not any(driven.operator.state(table) for table in driven.tables)


@pytest.mark.parametrize("removed", [[("k", "b")], [("k", None)] * 2, [("k", "a")] * 2])
def test_a_value_that_was_never_added_cannot_be_retracted(make_operator: Any, removed: Sequence[Any]) -> None:
    driven = Driven(make_operator, "string")
    driven.run([("k", "a")], [])
    with pytest.raises(EpochAborted) as raised:
        driven.operator.attempt([partial("k", [], list(removed))])
    assert "retracted" in failure_of(raised.value).message


def test_an_overflow_of_a_sum_names_operator_and_column(make_operator: Any) -> None:
    driven = Driven(make_operator, "bigint")
    row = partial("k", [("k", 1)], []) | {"total_sum": 2**63 - 1}
    driven.operator.run([row])
    with pytest.raises(EpochAborted) as raised:
        driven.operator.attempt([row])
    assert "Operator 'operator', column 'total'" in failure_of(raised.value).message


def test_an_intermediate_sum_may_overflow(make_operator: Any) -> None:
    driven = Driven(make_operator, "bigint")
    row = partial("k", [("k", 1)], [])
    driven.operator.run([row | {"total_sum": -(2**63)}])
    (found,) = driven.operator.run([row | {"total_sum": 2**64 - 1}])
    assert found["total_sum"] == 2**63 - 1
