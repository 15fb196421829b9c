"""Epoch cuts, executable: the algorithms of the papers over process graphs, and one judge of what they record.

:mod:`~epochal.testing.cuts.processes` is the system model; :mod:`~epochal.testing.cuts.chandy_lamport`,
:mod:`~epochal.testing.cuts.barriers` and :mod:`~epochal.testing.cuts.epoch_snapshots` are the algorithms, each line
beside the paper's; :mod:`~epochal.testing.cuts.judgement` says whether a snapshot is what it has to be. Traces of the
engine itself come from :mod:`epochal.testing.cuts.recorder` and have the same judge. ``docs/theory.md`` maps the papers
to all of it; ``python -m epochal.testing.cuts`` draws figures 3.14 and 3.16 of the thesis.
"""

from __future__ import annotations

from epochal.testing.cuts.traces import Event, Mark, Trace, cut_violations, disorder, inconsistencies

__all__ = ["Event", "Mark", "Trace", "cut_violations", "disorder", "inconsistencies"]
