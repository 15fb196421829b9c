"""What a trial found, for who asked for it: no Spark is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

BRANCHES = "trial-"
"""How the branches of trials begin; what is found of them later was left by a trial that was killed."""


@dataclass(frozen=True)
class TableComparison:
    """Keys by what differs. ``rows``: those that are the same in both. ``examples``: key, before, after, as JSON."""

    table: str
    rows: int
    only_before: int
    only_after: int
    different: int
    examples: tuple[dict[str, Any], ...]

    @property
    def same(self) -> bool:
        return not (self.only_before or self.only_after or self.different)


@dataclass(frozen=True)
class SinkComparison:
    """The rows that a sink would get of two versions, from the same input: how often one has a row, less the other.

    ``committed`` is the number that it really got, ``None`` where it was not written to. ``examples``: ``row``,
    ``version`` (``before`` or ``after``), ``times``.
    """

    sink: str
    committed: int | None
    before: int
    after: int
    only_before: int
    only_after: int
    examples: tuple[dict[str, Any], ...] = ()

    @property
    def same(self) -> bool:
        return self.only_before == 0 and self.only_after == 0


class TrialReport(BaseModel):
    """``base``: the epoch whose snapshot the trial began from, ``None`` for the beginning; ``same``: no difference."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: int | None
    epochs: int
    seconds: float
    same: bool
    tables: tuple[TableComparison, ...]
    sinks: tuple[SinkComparison, ...]


def trial_folders(name: str) -> tuple[str, str]:
    """The folders of the store that hold the deltas of the trial ``name`` while it runs."""
    return f"{BRANCHES}{name}-before", f"{BRANCHES}{name}-after"
