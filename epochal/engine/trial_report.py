"""Result of a trial. This module does not import Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

BRANCHES = "trial-"
"""Prefix of the branches of trials. Existing folders with it belong to running or killed trials."""


@dataclass(frozen=True)
class TableComparison:
    """Comparison of a state table, in numbers of keys. ``rows``: equal rows. ``examples``: key, before, after, as
    JSON."""

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
    """Comparison of the rows that two versions write to a sink, as multisets.

    ``committed``: number of rows that the original epochs wrote; ``None`` if the sink did not exist. ``examples``:
    ``row``, ``version`` (``before`` or ``after``), ``times``.
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
    """Result of a trial. ``base``: epoch of the snapshot that the trial began at; ``None``: the beginning. ``same``: no
    differences were found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: int | None
    epochs: int
    seconds: float
    same: bool
    tables: tuple[TableComparison, ...]
    sinks: tuple[SinkComparison, ...]


def trial_folders(name: str) -> tuple[str, str]:
    """Folders of the store with the deltas of the trial ``name``."""
    return f"{BRANCHES}{name}-before", f"{BRANCHES}{name}-after"
