"""Executable epoch cuts: the algorithms of the papers over process graphs, and checks of the recorded traces.

:mod:`~tests.kit.cuts.processes` is the system model. :mod:`~tests.kit.cuts.chandy_lamport`,
:mod:`~tests.kit.cuts.barriers` and :mod:`~tests.kit.cuts.epoch_snapshots` are the algorithms, annotated with the line
numbers of the papers. :mod:`~tests.kit.cuts.judgement` checks snapshots. :mod:`tests.kit.cuts.recorder` records traces
of the engine itself, which pass the same checks. ``docs/theory/papers.md`` maps the papers to these modules;
``python -m tests.kit.cuts`` draws figures 3.14 and 3.16 of the thesis.
"""

from __future__ import annotations

from tests.kit.cuts.traces import Event, Mark, Trace, cut_violations, disorder, inconsistencies

__all__ = ["Event", "Mark", "Trace", "cut_violations", "disorder", "inconsistencies"]
