"""Verdicts from the rounds of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

LIMIT = 1.1
"""Ratio of times above which a quantity counts as slower."""

Verdict = Literal["slower", "faster", "as fast", "undecided"]


@dataclass(frozen=True)
class Compared:
    """One quantity in several rounds: ``before`` of the other commit, ``now`` of this one."""

    name: str
    unit: str
    rate: bool
    before: Sequence[float]
    now: Sequence[float]

    @property
    def costs(self) -> Sequence[float]:
        """Ratio of times in each round; above 1 this commit is slower."""
        pairs = zip(self.before, self.now, strict=True)
        return [before / now if self.rate else now / before for before, now in pairs]

    @property
    def verdict(self) -> Verdict:
        """Slower or faster if the median ratio exceeds the limit and all rounds are on the same side of 1.

        Undecided if rounds contradict each other, because other processes used the machine, or if there was only one
        round, which may have been disturbed.
        """
        costs, middle = self.costs, median(self.costs)
        if middle > LIMIT:
            return "slower" if min(costs) > 1 and len(costs) > 1 else "undecided"
        if middle < 1 / LIMIT:
            return "faster" if max(costs) < 1 and len(costs) > 1 else "undecided"
        return "as fast"
