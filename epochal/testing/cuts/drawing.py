"""An execution as text: a line for each process, time to the right, the recorded state of each where it was cut."""

from __future__ import annotations

from epochal.testing.cuts.processes import Execution, Step


def drawn(execution: Execution, epoch: int) -> str:
    """A message stands where it is processed, by the name of the input that it comes of; ``○p`` is a marker from p;
    ``┃`` ends what the recorded state of a process reflects; ``■`` is where it was all recorded."""
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
    """The place of the last step of a process that its recorded state reflects; -1 where there is none."""
    cut = execution.snapshots[epoch].cut

    def inside(step: Step) -> bool:
        return step.process == process and step.event in cut

    return max((number for number, step in enumerate(execution.steps) if inside(step)), default=-1)
