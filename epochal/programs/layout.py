"""Where things stand in the drawing of a dataflow: a column for each stage, rows for entries, in pixels. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.programs.dataflow import AccessKind, Dataflow, Edge, TaskElement

CHARACTER, LINE = 6.6, 15.0
"""The width of a character and the height of a line of text."""
MARGIN, GAP, PADDING = 24.0, 60.0, 16.0


@dataclass(frozen=True)
class Box:
    """``x`` and ``y`` are of the upper left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True)
class Layout:
    """``stages`` are around what runs in one operator; ``labels`` of edges are the middles of their first lines."""

    width: float
    height: float
    entries: dict[str, Box]
    tasks: dict[int, Box]
    elements: dict[str, Box]
    stages: tuple[Box, ...]
    labels: dict[int, tuple[float, float]]


def task_text(task: TaskElement) -> list[str]:
    """What stands in the box of a task element."""
    beside = task.access in (AccessKind.LOCAL, AccessKind.GLOBAL)
    kind = f"{task.access.value} access, " if task.access and beside else ""
    return [task.name, f"{kind}{lines(task)}"]


def entry_text(dataflow: Dataflow, name: str) -> list[str]:
    """What stands in the box of an entry."""
    entry = dataflow.entries[name]
    return [name, f"→ {entry.answer.python}"]


def element_text(dataflow: Dataflow, name: str) -> list[str]:
    """What stands in a state element."""
    element = dataflow.elements[name]
    by = f" by {element.by}" if element.by else ""
    return [name, f"{element.distribution.value} {element.shown_kind}{by}", str(element.model)]


def edge_text(edge: Edge) -> list[str]:
    """What stands at an edge: the dispatch, and the variables."""
    head = edge.dispatch.value + (f" {edge.key}" if edge.key else "") + (", fan-out" if edge.fan_out else "")
    names = ", ".join(field.name for field in edge.fields)
    return [head, names] if names else [head]


def lines(task: TaskElement) -> str:
    """``lines 21-23``; nothing where it has none of its own."""
    if not task.lines:
        return ""
    first, last = task.lines[0], task.lines[-1]
    return f"line {first}" if first == last else f"lines {first}–{last}"


def layout(dataflow: Dataflow) -> Layout:
    """Place everything. Two task elements of an entry in one stage stand one below the other."""
    rows = _rows(dataflow)
    before = _gaps(dataflow)
    entry_width = max(_width(entry_text(dataflow, name)) for name in dataflow.entries)
    height = 3 * LINE + PADDING
    top = MARGIN + PADDING
    row_y = {row: top + row * (height + GAP / 2) for row in range(max(rows.values()) + 1)}
    bottom = max(row_y.values()) + height + GAP / 2
    x = MARGIN + entry_width
    tasks: dict[int, Box] = {}
    elements: dict[str, Box] = {}
    stages = []
    for number, stage in enumerate(dataflow.stages):
        x += before[number]
        texts = [task_text(dataflow.tasks[task]) for task in stage.tasks]
        if stage.element is not None:
            texts.append(element_text(dataflow, stage.element))
        width = max(map(_width, texts)) + 2 * PADDING
        for task in stage.tasks:
            tasks[task] = Box(x + PADDING, row_y[rows[task]] + LINE / 2, width - 2 * PADDING, 2 * LINE + PADDING)
        inner = [tasks[task] for task in stage.tasks]
        if stage.element is not None:
            elements[stage.element] = Box(x + PADDING, bottom, width - 2 * PADDING, 3 * LINE + 1.5 * PADDING)
            inner.append(elements[stage.element])
        upper, lower = min(box.y for box in inner) - PADDING, max(box.bottom for box in inner) + PADDING
        stages.append(Box(x, upper, width, lower - upper))
        x += width
    entries = {
        name: Box(MARGIN, tasks[entry.target].y, entry_width, tasks[entry.target].height)
        for name, entry in dataflow.entries.items()
    }
    total = max(box.bottom for box in stages) + MARGIN
    return Layout(x + MARGIN, total, entries, tasks, elements, tuple(stages), _labels(dataflow, tasks, entries))


def _rows(dataflow: Dataflow) -> dict[int, int]:
    """The row of each task element: its entry's, and further ones where a stage has several of the entry."""
    rows: dict[int, int] = {}
    first = 0
    for entry in dataflow.entries:
        deepest = 1
        for stage in dataflow.stages:
            own = [task for task in stage.tasks if dataflow.tasks[task].entry == entry]
            deepest = max(deepest, len(own))
            rows |= {task: first + position for position, task in enumerate(own)}
        first += deepest
    return rows


def _gaps(dataflow: Dataflow) -> list[float]:
    """The room to the left of each stage: for the labels of edges that end there."""
    stage_of = {task: number for number, stage in enumerate(dataflow.stages) for task in stage.tasks}
    gaps = [GAP] * len(dataflow.stages)
    for edge in dataflow.edges:
        here = stage_of[edge.target]
        gaps[here] = max(gaps[here], _width(edge_text(edge)) + 2 * PADDING)
    return gaps


def _labels(dataflow: Dataflow, tasks: dict[int, Box], entries: dict[str, Box]) -> dict[int, tuple[float, float]]:
    """Beside the arrow's head; edges that end in the same task element one above the other."""
    labels = {}
    above: dict[int, int] = {}
    for edge in dataflow.edges:
        target = tasks[edge.target]
        text = edge_text(edge)
        number = above.get(edge.target, 0)
        above[edge.target] = number + 1
        y = target.middle - 6 - LINE * (len(text) - 1) - number * LINE * 2
        labels[edge.number] = (target.x - PADDING - _width(text) / 2 - PADDING / 2, y)
    return labels


def _width(text: list[str]) -> float:
    return max(map(len, text)) * CHARACTER + PADDING
