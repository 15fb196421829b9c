"""Epoch cuts, executable: the algorithms of the papers over process graphs, and one judge of what they record.

:mod:`~tests.kit.cuts.processes` is the system model; :mod:`~tests.kit.cuts.chandy_lamport`,
:mod:`~tests.kit.cuts.barriers` and :mod:`~tests.kit.cuts.epoch_snapshots` are the algorithms, each line
beside the paper's; :mod:`~tests.kit.cuts.judgement` says whether a snapshot is what it has to be. Traces of the
engine itself come from :mod:`tests.kit.cuts.recorder` and have the same judge. ``docs/theory.md`` maps the papers
to all of it; ``python -m tests.kit.cuts`` draws figures 3.14 and 3.16 of the thesis.
"""

from __future__ import annotations

from tests.kit.cuts.traces import Event, Mark, Trace, cut_violations, disorder, inconsistencies

__all__ = ["Event", "Mark", "Trace", "cut_violations", "disorder", "inconsistencies"]
