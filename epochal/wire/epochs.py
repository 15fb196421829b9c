from __future__ import annotations

from datetime import datetime

from pydantic import Field

from epochal.contracts.catalog import EpochRecord
from epochal.wire.bodies import Answer, Page


class FoldedRange(Answer):
    """Epochs ``first`` to ``last`` of a branch, without a gap: ``aborted`` of them were aborted, the others committed,
    by one version, and have expired since. Of these the catalog keeps nothing else; the counts are sums. Where all were
    aborted, the times are those at which the first and the last of them began."""

    branch: str
    first: int
    last: int
    version: int | None
    rows_in: int
    rows_out: int
    state_rows: int
    state_bytes: int
    committed_from: datetime
    committed_until: datetime
    aborted: int = 0

    @property
    def committed(self) -> int:
        """How many were."""
        return self.last - self.first + 1 - self.aborted


class EpochPage(Page[EpochRecord]):
    """``folded``: ranges that lie between the items, or below the last of them, newest first."""

    folded: list[FoldedRange] = Field(default_factory=list)
