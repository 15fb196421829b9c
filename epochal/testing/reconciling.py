"""Is an author's ``reconcile`` of partial state associative and commutative? As a property test has to ask it.

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
    """Equal, but that numbers with a fraction may differ in their last digits: their sums depend on the order."""
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
    """What three instances hold becomes the same in whatever order two of them become one.

    Which ones do depends on the parallelism before and after, so that a ``reconcile`` for which this does not hold
    makes the state depend on it, too. ``same``: when two values are. Raises ``AssertionError`` that shows the values.
    """

    def of(first: Value, second: Value) -> Value:
        return reconcile(deepcopy(first), deepcopy(second))  # it may change what it is given

    one, other = of(a, b), of(b, a)
    assert same(one, other), (
        f"reconcile is not commutative: reconcile({a!r}, {b!r}) is {one!r}, and the other way round {other!r}"
    )
    first, last = of(of(a, b), c), of(a, of(b, c))
    assert same(first, last), (
        f"reconcile is not associative: of {a!r}, {b!r} and {c!r} it makes {first!r}, or, beginning with the last "
        f"two, {last!r}"
    )
