"""The execution of the thesis's figures 3.14 and 3.16: two sources, a task that both reach, and a sink."""

from __future__ import annotations

from typing import Final

from tests.kit.cuts.chandy_lamport import ChandyLamport
from tests.kit.cuts.epoch_snapshots import epoch_snapshots
from tests.kit.cuts.processes import (
    Channel,
    EpochEvent,
    Execution,
    Input,
    MakeProcess,
    Message,
    ProcessGraph,
    Step,
)

GRAPH: Final = ProcessGraph((Channel("p1", "p3"), Channel("p2", "p3"), Channel("p3", "p4")))


def consistent_only() -> Execution:
    """Figure 3.14: the marker of p2 overtakes the message of p1, which is logged as if in a loop."""
    return _figure(ChandyLamport)


def aligned() -> Execution:
    """Figure 3.16: p3 blocks p2 until the marker of p1 arrives."""
    return _figure(epoch_snapshots)


def _figure(make: MakeProcess) -> Execution:
    def inputs(first: str, second: str) -> list[Input]:
        return [Message((first,)), EpochEvent(1), Message((second,))]

    execution = Execution(GRAPH, make, {"p1": inputs("a", "b"), "p2": inputs("x", "y")})
    # p1 takes a; p2 takes x, its epoch event and y; p3 the messages from p2; the rest follows in order.
    return execution.run([0, 1, 1, 1, *[2] * 3])


def drawn(execution: Execution, epoch: int) -> str:
    """Draw an execution. A message, named after its input, is shown at the step that processes it.

    ``○p`` is a marker from p; ``┃`` ends the part that the recorded state of a process reflects; ``■`` is the step at
    which the state was recorded.
    """
    snapshot = execution.snapshots[epoch]
    cut = snapshot.cut
    names = max(len(name) for name in execution.processes)
    lines = []
    for name in sorted(execution.processes, key=lambda name: name not in execution.graph.sources):
        last = _last_inside(execution, epoch, name)
        cells = []
        for number, step in enumerate(execution.steps):
            width = max(len(step.label), 1)
            cells.append(step.label if step.process == name else "─" * width)
            cells.append("┃" if number == last else "─")
        lines.append(f"{name:<{names}} {'┃' if last < 0 else '─'}{''.join(cells)}")
    crossing = sorted(execution.trace.across(cut), key=str)
    lines += [f"{result} is not in the cut, but {event} is" for event, result in crossing]
    return "\n".join(line.rstrip() for line in lines)


def _last_inside(execution: Execution, epoch: int, process: str) -> int:
    """Return the position of the last step of a process that its recorded state reflects; -1 if there is none."""
    cut = execution.snapshots[epoch].cut

    def inside(step: Step) -> bool:
        return step.process == process and step.event in cut

    return max((number for number, step in enumerate(execution.steps) if inside(step)), default=-1)
