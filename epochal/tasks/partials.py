"""What operators over windows keep of a pane or a session, and merge: the aggregates' partials, or whatever merges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.table import Column, StateTable
from epochal.state.type_names import KeyText
from epochal.tasks.operator import Subtask


class Merging(Protocol):
    """Value columns of ``table`` that merge, in whichever order. :class:`~epochal.aggregates.plan.AggregationPlan`."""

    @property
    def table(self) -> StateTable: ...

    @property
    def computed(self) -> tuple[Column, ...]:
        """What is given out beside, and not kept."""

    def merge(self, found: npt.NDArray[np.bool_], old: pa.Table, new: pa.Table, key: KeyText | None = None) -> pa.Table:
        """Row i of ``old``, where ``found[i]``, and of ``new`` as one. ``key``: of a row, for an error's message."""

    def compute(self, merged: pa.Table, key: KeyText | None = None) -> list[Any]:
        """The columns ``computed`` of each row of ``merged``."""


class WindowedWork(Protocol):
    """Rows by key and pane, with what is kept of each, in; key, bounds of the window, what is kept of it, out."""

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...
