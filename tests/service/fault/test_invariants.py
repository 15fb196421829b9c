"""The oracle and epoch cuts on small examples."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from epochal.testing.oracle import KeyedOracle, Row, expectations, multiset
from tests.kit.cuts import Event, Mark, Trace, cut_violations


def count_or_delete(before: Row | None, rows: Sequence[Row]) -> tuple[Row | None, Sequence[Row]]:
    """Count the rows; a last value of 0 deletes the key."""
    if rows[-1]["value"] == 0:
        return None, []
    after = {"count": (before["count"] if before else 0) + len(rows)}
    return after, [{"key": rows[0]["key"], **after}]


def row(key: str, value: int) -> Row:
    return {"key": key, "value": value}


def test_oracle_computes_state_and_output_of_each_epoch() -> None:
    oracle = KeyedOracle("counts", "in", "out", ("key",), count_or_delete, order_by=("value",))
    first, second, third = expectations(
        [oracle], [{"in": [row("a", 2), row("b", 1), row("a", 1)]}, {}, {"in": [row("a", 1), row("b", 0)]}]
    )
    assert first.state["counts"] == multiset([{"key": "a", "count": 2}, {"key": "b", "count": 1}])
    assert first.output["out"] == first.state["counts"]
    assert second.state == first.state
    assert second.output["out"] == multiset([])
    assert third.state["counts"] == multiset([{"key": "a", "count": 3}])
    assert third.output["out"] == multiset([{"key": "a", "count": 3}])


# Two sources feed one task; the second event of each source comes after the mark of epoch 1.
SOURCE_A: list[Event] = ["a1", Mark("a", 1), "a2"]
SOURCE_B: list[Event] = ["b1", Mark("b", 1), "b2"]
PRODUCTIONS = {"a1": ["t1"], "b1": ["t2"], "a2": ["t3"], "b2": ["t4"]}


def trace(*task: Event) -> Trace:
    return Trace({"a": SOURCE_A, "b": SOURCE_B, "task": task}, PRODUCTIONS)


ALIGNED = trace("t1", "t2", Mark("task", 1), "t3", "t4")


def test_epoch_cut_violates_no_invariant() -> None:
    assert cut_violations(ALIGNED, 1, {"a1", "b1", "t1", "t2"}) == []


@pytest.mark.parametrize(
    ("invariant", "cut"),
    [
        ("(1)", {"a1", "b1", "t1", "t2", "a2"}),
        ("(2)", {"b1", "t2"}),
        ("(3)", {"a1", "b1", "t1"}),
        ("(4)", {"b1", "t1", "t2"}),
    ],
)
@pytest.mark.claim("Thesis, definition 3.2.1", "Thesis, definition 3.3.2")
def test_violation_of_each_invariant_is_found(invariant: str, cut: set[str]) -> None:
    assert any(problem.startswith(invariant) for problem in cut_violations(ALIGNED, 1, cut))


@pytest.mark.claim("Thesis, definition 3.4.3", "Thesis, figure 3.12")
def test_trace_without_alignment_has_no_valid_cut() -> None:
    """The task processes an event of epoch 2 before one of epoch 1: thesis, figure 3.12."""
    unaligned = trace("t1", "t3", "t2", Mark("task", 1), "t4")
    assert cut_violations(unaligned, 1, {"a1", "b1", "t1", "t2"}) != []
    assert cut_violations(unaligned, 1, {"a1", "b1", "t1", "t2", "t3", "a2"}) != []
