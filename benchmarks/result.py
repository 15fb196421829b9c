"""Results of a measure: the number, the target, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Result:
    """One line of the table. ``reached`` is ``None`` without a target."""

    measure: str
    reach: str
    measured: str
    reached: bool | None
    how: str = ""

    @property
    def verdict(self) -> str:
        return {True: "reached", False: "**not reached**", None: ""}[self.reached]

    def encode(self) -> dict[str, Any]:
        return asdict(self)


def at_most(measure: str, value: float, limit: float, unit: str, how: str = "", digits: int = 2) -> Result:
    """A result with a maximum as target."""
    return Result(measure, f"at most {limit:g} {unit}", f"{value:,.{digits}f} {unit}", value <= limit, how)


def at_least(measure: str, value: float, limit: float, unit: str, how: str = "", digits: int = 2) -> Result:
    """A result with a minimum as target."""
    return Result(measure, f"at least {limit:,g} {unit}", f"{value:,.{digits}f} {unit}", value >= limit, how)


def number(measure: str, value: float, unit: str, how: str = "", digits: int = 2) -> Result:
    """A result without a target."""
    return Result(measure, "", f"{value:,.{digits}f} {unit}", None, how)


def in_turns(
    measure: str,
    longer: Sequence[float],
    shorter: Sequence[float],
    most: float | None = None,
    least: float | None = None,
) -> Result:
    """Median, least and greatest ratio of two sides that were measured in the same turns.

    ``most``, ``least``: target for the median.
    """
    ratios = [one / other for one, other in zip(longer, shorter, strict=True)]
    how = f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} turns"
    if most is not None:
        return at_most(measure, median(ratios), most, "times", how)
    if least is not None:
        return at_least(measure, median(ratios), least, "times", how)
    return number(measure, median(ratios), "times", how)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]
