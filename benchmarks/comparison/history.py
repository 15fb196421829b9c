"""The history of comparisons: a line of JSON for each, oldest first, which is committed with the code.

Numbers of different days or machines are not comparable. Each line has the numbers of two commits from one run, so that
a slower commit stays visible.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.comparison.verdict import Compared

HISTORY = Path(__file__).parents[1] / "history.jsonl"


@dataclass(frozen=True)
class Comparison:
    """``on``: the date. ``commit`` was compared with ``against`` on ``machine``."""

    on: str
    commit: str
    against: str
    machine: Mapping[str, str]
    found: Sequence[Compared]


def add(comparison: Comparison, file: Path = HISTORY) -> None:
    with file.open("a") as history:
        history.write(json.dumps(asdict(comparison)) + "\n")


def comparisons(file: Path = HISTORY) -> list[Comparison]:
    """All comparisons, oldest first; empty if the file is missing."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return [Comparison(**{**each, "found": [Compared(**one) for one in each["found"]]}) for each in found]


def cells(compared: Compared) -> list[str]:
    """Cells for people: the quantity, both medians, the least and greatest ratio of times, the verdict."""
    costs = compared.costs
    return [
        compared.name,
        *(f"{_number(median(values))} {compared.unit}" for values in (compared.before, compared.now)),
        f"{min(costs):.2f} to {max(costs):.2f}",
        compared.verdict,
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
