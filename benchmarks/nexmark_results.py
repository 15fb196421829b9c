"""Results of a run of Nexmark's queries: kept in a JSON file as they come, so that a run can continue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.sessions import CORES

REACHED = {True: "reached", False: "**not reached**"}


@dataclass(frozen=True)
class Measured:
    """Events a second of one query, by engine, in each round; ``failures``: error messages by engine."""

    query: str
    rates: Mapping[str, Sequence[float]]
    failures: Mapping[str, str] = field(default_factory=dict)

    def rate(self, engine: str) -> float:
        """Median of the rounds, or ``nan`` without a result."""
        return median(self.rates[engine]) if self.rates.get(engine) else nan

    def times(self, engine: str, other: str) -> list[float]:
        """Speed of ``engine`` relative to ``other`` in each round that both have."""
        rounds = zip(self.rates.get(engine, ()), self.rates.get(other, ()), strict=False)
        return [mine / theirs for mine, theirs in rounds]


@dataclass
class Run:
    """The results of a run. ``parameters`` and ``machine`` are those of its start."""

    file: Path
    parameters: Mapping[str, int]
    machine: Mapping[str, str]
    date: str
    measured: dict[str, Measured] = field(default_factory=dict)

    def add(self, found: Measured) -> None:
        """Add or replace the results of a query, and write the file."""
        self.measured[found.query] = found
        self.write()

    def write(self) -> None:
        """Replace the file atomically."""
        values = {
            "date": self.date,
            "parameters": dict(self.parameters),
            "machine": dict(self.machine),
            "measured": [asdict(each) for each in self.measured.values()],
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(values, indent=1) + "\n")
        partial.replace(self.file)

    def among(self, queries: Iterable[str]) -> list[Measured]:
        """The results of these queries, in this order, without those that are missing."""
        return [self.measured[query] for query in queries if query in self.measured]


def begin(file: Path, parameters: Mapping[str, int], machine: Mapping[str, str]) -> Run:
    """A run without results, whose file is written immediately."""
    run = Run(file, parameters, machine, f"{datetime.now(UTC):%Y-%m-%d}")
    run.write()
    return run


def resume(file: Path, parameters: Mapping[str, int]) -> Run:
    """The run of ``file``. Raises ``ValueError`` if it had other parameters, and ``OSError`` if it cannot be read."""
    values: dict[str, Any] = json.loads(file.read_text())
    if values["parameters"] != dict(parameters):
        raise ValueError(f"{file} has results with {values['parameters']}, not with {dict(parameters)}")
    measured = {each["query"]: Measured(**each) for each in values["measured"]}
    return Run(file, values["parameters"], values["machine"], values["date"], measured)


def new_file(name: str) -> Path:
    """A file for the results of a new run, in the folder ``build`` of the checkout."""
    return Path(__file__).parents[1] / "build" / "benchmarks" / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S}.json"


def rate_cell(rate: float) -> str:
    """Events a second, and in parentheses for each core; empty for ``nan``."""
    return "" if rate != rate else f"{rate:,.0f} ({rate / CORES:,.0f})"


def ratio_cells(ratios: Sequence[float]) -> tuple[str, str]:
    """The least and the greatest ratio; empty without one."""
    return (f"{min(ratios):.2f}", f"{max(ratios):.2f}") if ratios else ("", "")


def printed(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left")
    for cells in rows:
        table.add_row(*cells)
    return table


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of the results page."""
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def verdict(
    what: str, ratios: Mapping[str, Sequence[float]], least: float | None = None, most: float | None = None
) -> str:
    """A line for a target of each query: at least ``least``, or at most ``most``, in every round. Lists the others."""
    worst = {query: (min if most is None else max)(each) for query, each in ratios.items() if each}
    missed = [
        f"{query} {value:.2f}"
        for query, value in worst.items()
        if (least is not None and value < least) or (most is not None and value > most)
    ]
    return f"- {what}: {REACHED[not missed]} {', '.join(missed)}".rstrip() if worst else f"- {what}: not measured"
