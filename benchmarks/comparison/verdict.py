"""What the rounds of a comparison say: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

LIMIT = 1.1
"""A regression is more than a tenth."""

Said = Literal["slower", "faster", "as fast", "cannot be told"]


@dataclass(frozen=True)
class Compared:
    """One quantity, in rounds that each measured both: ``before`` of the other commit, ``now`` of this one."""

    name: str
    unit: str
    rate: bool
    before: Sequence[float]
    now: Sequence[float]

    @property
    def costs(self) -> Sequence[float]:
        """By round how much this commit takes of what the other takes, as time: above 1 it is slower."""
        pairs = zip(self.before, self.now, strict=True)
        return [before / now if self.rate else now / before for before, now in pairs]

    @property
    def said(self) -> Said:
        """Slower or faster by more than a tenth in the median round, and in all rounds on that side of 1.

        Where rounds contradict one another so much, it cannot be told: other work took part of the machine. Nor can it
        where there was one round alone, which may have been disturbed.
        """
        costs, middle = self.costs, median(self.costs)
        if middle > LIMIT:
            return "slower" if min(costs) > 1 and len(costs) > 1 else "cannot be told"
        if middle < 1 / LIMIT:
            return "faster" if max(costs) < 1 and len(costs) > 1 else "cannot be told"
        return "as fast"
