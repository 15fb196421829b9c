"""The interface that runs a pipeline in the author's process, for ``Pipeline.run`` and ``Pipeline.show``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from epochal.pipeline.graph import Graph

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RunOptions:
    """Options of a run. ``epochs``: the maximum number of epochs; ``None``: until the sources end, or an interrupt.

    ``available_now``: process only the rows that the sources have now. ``drain``: when all sources are bounded and have
    ended, a last epoch outputs all waiting rows. ``directory``: the directory of the state, from which the next run
    continues; ``None``: a temporary directory. ``take_over``: take the directory over from another run.
    ``configuration``: settings of an application. ``shadow``: write to no sink. ``accept_changed``, ``accept_partial``:
    accepted differences from the state in the directory. ``aborted``: sinks and epochs whose decided rows are dropped,
    in that sink only.
    """

    epochs: int | None = None
    available_now: bool = False
    drain: bool = True
    directory: Path | None = None
    take_over: bool = False
    configuration: Mapping[str, Any] = field(default_factory=dict)
    shadow: bool = False
    accept_changed: Sequence[str] = ()
    accept_partial: Sequence[str] = ()
    aborted: tuple[tuple[str, int], ...] = ()


class RunEpoch(BaseModel):
    """One epoch of a run: rows read, written and changed."""

    model_config = ConfigDict(frozen=True)

    epoch: int
    rows_in: int
    rows_out: int
    state_rows: int


class RunOutcome(BaseModel):
    """The result of a run. ``interrupted``: it was interrupted; otherwise its sources ended or the limit was reached.

    ``drained``: all input has ended, all waiting rows were output, and the run cannot be continued.
    """

    model_config = ConfigDict(frozen=True)

    pipeline: str
    interrupted: bool
    drained: bool = False
    epochs: tuple[RunEpoch, ...]

    @property
    def rows_in(self) -> int:
        return sum(epoch.rows_in for epoch in self.epochs)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        how = "stopped" if self.interrupted else "done"
        epochs = "1 epoch" if len(self.epochs) == 1 else f"{len(self.epochs)} epochs"
        caption = f"{escape(self.pipeline)}: {how} after {epochs}, {self.rows_in:,} rows in"
        heads = "".join(f"<th>{name}</th>" for name in ("epoch", "rows in", "rows out", "rows changed"))
        rows = "".join(
            f"<tr><td>{epoch.epoch}</td><td>{epoch.rows_in:,}</td><td>{epoch.rows_out:,}</td>"
            f"<td>{epoch.state_rows:,}</td></tr>"
            for epoch in self.epochs
        )
        return f"<table><caption>{caption}</caption><tr>{heads}</tr>{rows}</table>"


class Runner(ABC):
    """The class that is registered as ``local`` in the entry point group ``epochal.runners``. It takes no arguments."""

    @abstractmethod
    def run(self, graph: Graph, options: RunOptions, spark: SparkSession | None) -> RunOutcome:
        """Run until the end. Raises the errors of the pipeline and its epochs."""

    @abstractmethod
    def show(self, graph: Graph, rows: int, sample: int, spark: SparkSession | None) -> None:
        """Print output and state of one epoch over the first ``sample`` rows of each source, ``rows`` of each."""
