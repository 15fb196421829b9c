"""Layout of the drawing of a dataflow, in pixels: a column for each stage, rows for entries."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.programs.dataflow import AccessKind, Dataflow, Edge, TaskElement

CHARACTER, LINE = 6.6, 15.0
"""The width of a character and the height of a line of text."""
MARGIN, GAP, PADDING = 24.0, 60.0, 16.0


@dataclass(frozen=True)
class Box:
    """A box. ``x`` and ``y``: the upper left corner."""

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
    """A layout. ``stages``: the boxes around operators; ``labels``: the centres of the first lines of the labels of
    edges."""

    width: float
    height: float
    entries: dict[str, Box]
    tasks: dict[int, Box]
    elements: dict[str, Box]
    stages: tuple[Box, ...]
    labels: dict[int, tuple[float, float]]


def task_text(task: TaskElement) -> list[str]:
    """The text of a task element."""
    beside = task.access in (AccessKind.LOCAL, AccessKind.GLOBAL)
    kind = f"{task.access.value} access, " if task.access and beside else ""
    return [task.name, f"{kind}{lines(task)}"]


def entry_text(dataflow: Dataflow, name: str) -> list[str]:
    """The text of an entry."""
    entry = dataflow.entries[name]
    return [name, f"→ {entry.answer.python}"]


def element_text(dataflow: Dataflow, name: str) -> list[str]:
    """The text of a state element."""
    element = dataflow.elements[name]
    by = f" by {element.by}" if element.by else ""
    return [name, f"{element.distribution.value} {element.shown_kind}{by}", str(element.model)]


def edge_text(edge: Edge) -> list[str]:
    """The text of an edge: the dispatch, and the variables."""
    head = edge.dispatch.value + (f" {edge.key}" if edge.key else "") + (", fan-out" if edge.fan_out else "")
    names = ", ".join(field.name for field in edge.fields)
    return [head, names] if names else [head]


def lines(task: TaskElement) -> str:
    """``lines 21-23``, or an empty text."""
    if not task.lines:
        return ""
    first, last = task.lines[0], task.lines[-1]
    return f"line {first}" if first == last else f"lines {first}–{last}"


def layout(dataflow: Dataflow) -> Layout:
    """Compute the layout. Task elements of an entry in one stage are below each other."""
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
    """The row of each task element. Entries with several task elements in a stage have several rows."""
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
    """The space to the left of each stage, for the labels of its input edges."""
    stage_of = {task: number for number, stage in enumerate(dataflow.stages) for task in stage.tasks}
    gaps = [GAP] * len(dataflow.stages)
    for edge in dataflow.edges:
        here = stage_of[edge.target]
        gaps[here] = max(gaps[here], _width(edge_text(edge)) + 2 * PADDING)
    return gaps


def _labels(dataflow: Dataflow, tasks: dict[int, Box], entries: dict[str, Box]) -> dict[int, tuple[float, float]]:
    """The position of the label of an edge, next to its end; labels at the same task element are stacked."""
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
