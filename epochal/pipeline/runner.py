"""Running a pipeline in the author's own process: for ``Pipeline.run`` and ``Pipeline.show``, by an entry point."""

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
    """How a pipeline is run. ``epochs`` ``None``: until its sources end, or it is interrupted.

    ``available_now``: what the sources have now, and no more. ``drain``: when all sources are bounded and at their end,
    a last epoch brings out everything that waits. ``directory`` ``None``: a temporary one, else state is
    kept there and the next run goes on from it; ``take_over`` takes it from a run that holds it. ``configuration``: as
    an application's. ``shadow``: without writing to any sink. ``accept_changed``, ``accept_partial``: differences from
    the state in the directory that this run accepts by name. ``aborted``: sinks and epochs whose decided rows are
    dropped, in that sink alone.
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
    """How a run ended. ``interrupted``: it was asked to, else its sources ended or the limit was reached.

    ``drained``: all input has ended, everything that waited has come out, and nothing can follow.
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
        """A table, in notebooks."""
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
    """What is registered as ``local`` in the entry point group ``epochal.runners``, as a class without arguments."""

    @abstractmethod
    def run(self, graph: Graph, options: RunOptions, spark: SparkSession | None) -> RunOutcome:
        """Run until the end. Raises what the pipeline or an epoch is wrong with."""

    @abstractmethod
    def show(self, graph: Graph, rows: int, sample: int, spark: SparkSession | None) -> None:
        """Print what one epoch over the first ``sample`` rows of each source writes and keeps, ``rows`` of each."""
