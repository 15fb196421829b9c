"""Summaries of runs, kept: what has been decided does not change, so only what has come since is added up."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from epochal.service.domain.lineage import Run, RunSummary

KEPT = 10_000

Read = Callable[[Run], RunSummary | None]


@dataclass(frozen=True)
class _Kept:
    """``until``: the first epoch that is not in it any more. ``folded``: see :meth:`RunSummaries.of`."""

    until: int
    folded: int
    summary: RunSummary | None


class RunSummaries:
    """Used from any thread. The last run of a branch ends before its head, and grows with it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: Run, folded: int, read: Read) -> RunSummary | None:
        """``folded``: how many epochs of the branch have been folded by now; their runs look different from then on.
        ``read``: adds a run up, epoch by epoch."""
        key = run.before.branch, run.after
        with self._lock:
            kept = self._kept.get(key)
        if kept is None or kept.folded != folded or kept.until > run.before.epoch:
            summary = read(run)
        elif kept.until == run.before.epoch:
            return kept.summary
        else:
            summary = _sum(kept.summary, read(Run(run.before, kept.until - 1)))
        with self._lock:
            self._kept[key] = _Kept(run.before.epoch, folded, summary)
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return summary


def _sum(older: RunSummary | None, newer: RunSummary | None) -> RunSummary | None:
    if older is None or newer is None:
        return older or newer
    return RunSummary(
        epochs=older.epochs + newer.epochs,
        first=older.first,
        last=newer.last,
        rows_in=older.rows_in + newer.rows_in,
        rows_out=older.rows_out + newer.rows_out,
        state_rows=older.state_rows + newer.state_rows,
        state_bytes=older.state_bytes + newer.state_bytes,
    )
