"""The execution of the thesis's figures 3.14 and 3.16: two sources, a task that both reach, and a sink."""

from __future__ import annotations

from typing import Final

from epochal.testing.cuts.chandy_lamport import ChandyLamport
from epochal.testing.cuts.epoch_snapshots import epoch_snapshots
from epochal.testing.cuts.processes import (
    Channel,
    EpochEvent,
    Execution,
    Input,
    MakeProcess,
    Message,
    ProcessGraph,
)

GRAPH: Final = ProcessGraph((Channel("p1", "p3"), Channel("p2", "p3"), Channel("p3", "p4")))


def consistent_only() -> Execution:
    """Figure 3.14: the marker of p2 is faster than the message of p1, which is logged as if in a loop."""
    return _figure(ChandyLamport)


def aligned() -> Execution:
    """Figure 3.16: p3 takes nothing more from p2 until the marker of p1 is there."""
    return _figure(epoch_snapshots)


def _figure(make: MakeProcess) -> Execution:
    def inputs(first: str, second: str) -> list[Input]:
        return [Message((first,)), EpochEvent(1), Message((second,))]

    execution = Execution(GRAPH, make, {"p1": inputs("a", "b"), "p2": inputs("x", "y")})
    # p1 takes a; p2 takes x, its epoch event and y; p3 what has come from p2; all the rest as it comes.
    return execution.run([0, 1, 1, 1, *[2] * 3])
