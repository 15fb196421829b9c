"""Checks, for property tests, that a ``reconcile`` of partial state is associative and commutative.

from hypothesis import given, strategies as st

@given(st.lists(st.integers(), min_size=3, max_size=3))
def test_my_totals_reconcile(values):
    check_reconcile(lambda a, b: a + b, *values)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeVar

Value = TypeVar("Value")


def close(one: Any, other: Any) -> bool:
    """Equality; floats can differ in their last digits, because their sums depend on the order."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(value, other[key]) for key, value in one.items())
    return bool(one == other)


def check_reconcile(
    reconcile: Callable[[Value, Value], Value],
    a: Value,
    b: Value,
    c: Value,
    same: Callable[[Value, Value], bool] = close,
) -> None:
    """Check that merging the values of three instances in any order has the same result.

    The order depends on the parallelism before and after a rescale, so that otherwise the state would depend on it.
    ``same``: the comparison of two values. Raises ``AssertionError`` that shows the values.
    """

    def of(first: Value, second: Value) -> Value:
        return reconcile(deepcopy(first), deepcopy(second))  # it can change its arguments

    one, other = of(a, b), of(b, a)
    assert same(one, other), (
        f"reconcile is not commutative: reconcile({a!r}, {b!r}) is {one!r}, and the other way round {other!r}"
    )
    first, last = of(of(a, b), c), of(a, of(b, c))
    assert same(first, last), (
        f"reconcile is not associative: of {a!r}, {b!r} and {c!r} it makes {first!r}, or, beginning with the last "
        f"two, {last!r}"
    )
