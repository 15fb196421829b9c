"""Numbers of subtasks of single operators that autoscaling aims at. Pure.

The stages of an epoch's job run one after another: operator *i* with *n* subtasks and *w* seconds of work per second
takes the share *w/n* of the time. The numbers with the smallest sum for which the shares add up to a target are
proportional to the square roots of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epochal.wire.configuration import Autoscaling

ROUNDING = 1e-9
"""Above a whole number by less than this is the whole number."""


@dataclass(frozen=True)
class OperatorWork:
    """The number of ``subtasks`` of an operator, and its seconds of work in the measured window."""

    subtasks: int
    busy_seconds: float

    @property
    def weight(self) -> float:
        """Proportional to its share of the time."""
        return self.busy_seconds / self.subtasks


def within_bounds(policy: Autoscaling, operators: Mapping[str, OperatorWork]) -> dict[str, int]:
    """The operators with a number outside the bounds, and the nearest number within."""
    nearest = {name: min(max(operator.subtasks, policy.least), policy.greatest) for name, operator in operators.items()}
    return _changed(operators, nearest)


def grown(policy: Autoscaling, operators: Mapping[str, OperatorWork], share: float) -> dict[str, int]:
    """The operators that get more subtasks, at most twice as many; empty if all that would help have the maximum.

    ``share``: the sum of the operators' shares of the time."""
    aims = _aims(operators, share, policy.target_busy_share, lambda aim, now: aim <= now)
    numbers = {
        name: min(aims[name], 2 * operator.subtasks, max(policy.greatest, operator.subtasks))
        for name, operator in operators.items()
    }
    if changed := _changed(operators, numbers):
        return changed
    # A source lags although the operators are not busy enough: the one that takes most of the time gets one more.
    room = [name for name, operator in operators.items() if operator.subtasks < policy.greatest]
    slowest = max(room, key=lambda name: operators[name].weight, default=None)
    return {} if slowest is None else {slowest: operators[slowest].subtasks + 1}


def shrunk(policy: Autoscaling, operators: Mapping[str, OperatorWork], share: float) -> dict[str, int]:
    """The operators that get fewer subtasks. ``share``: the greatest sum of the operators' shares of the time, which is
    below the target."""
    aims = _aims(operators, share, policy.target_busy_share, lambda aim, now: max(aim, policy.least) >= now)
    numbers = {name: min(max(aims[name], policy.least), operator.subtasks) for name, operator in operators.items()}
    return _changed(operators, numbers)


def _aims(
    operators: Mapping[str, OperatorWork], share: float, target: float, stays: Callable[[int, int], bool]
) -> dict[str, int]:
    """The least numbers with which the operators' shares of the time add up to at most ``target``.

    ``stays``: whether an operator keeps its number, from the number that it should have and its own. The shares of the
    others then add up to the rest.
    """
    weights = sum(operator.weight for operator in operators.values())
    shares = {name: share * operator.weight / weights if weights else 0.0 for name, operator in operators.items()}
    roots = {name: math.sqrt(shares[name] * operator.subtasks) for name, operator in operators.items()}
    kept: set[str] = set()
    while True:
        left = target - sum(shares[name] for name in kept)
        total = sum(root for name, root in roots.items() if name not in kept)
        aims = {
            name: operators[name].subtasks if name in kept else max(1, math.ceil(root * total / left - ROUNDING))
            for name, root in roots.items()
        }
        staying = {name for name in aims.keys() - kept if stays(aims[name], operators[name].subtasks)}
        if not staying:
            return aims
        kept |= staying


def _changed(operators: Mapping[str, OperatorWork], numbers: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if number != operators[name].subtasks}
