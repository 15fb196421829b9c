"""``show --plot``: the graph of an application by lanes, with its figures, and charts of its latest epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.lane_signs import in_ascii, lane_text
from epochal.client.figures import ENDS, SIDES, Figures, described
from epochal.client.graphs import ApplicationGraph
from epochal.client.models import Epoch
from epochal.drawing import texts
from epochal.drawing.bars import bar, columns
from epochal.drawing.lanes import Item, Row, rows, topological
from epochal.wire.versions import GraphNodeAnswer

MOST_NODES = 200
"""Maximum number of nodes; further ones are counted only."""
MOST_EPOCHS = 100
HEIGHT = 3
"""Lines of a chart."""
_BUSY = 8
_NAME, _GAP = 32, 2
_LABEL = 9
_ROOM = 24
"""Width for the largest and the latest value beside a chart."""
_SIGNS = {"source": ("●", "*"), "static": ("●", "*"), "sink": ("◆", "@")}
_COLOURS = {"source": "green", "sink": "magenta", "operator": "cyan", "plain": ""}


class Plot:
    """Graph and charts in the width of the console, in ASCII if the console's encoding requires it.

    ``epochs``: newest first."""

    def __init__(self, graph: ApplicationGraph, epochs: Sequence[Epoch], now: datetime | None = None) -> None:
        self._graph = graph
        self._epochs = [epoch for epoch in reversed(epochs) if epoch.state == "committed"]
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text()
        yield self._text(self._heading(), options, "dim")
        yield from self._nodes(options)
        if self._epochs:
            yield Text()
            first, last = self._epochs[0].epoch, self._epochs[-1].epoch
            shown = self._epochs[-self._width(options) :]
            headline = f"epochs {shown[0].epoch} to {last}, oldest left" if last > first else f"epoch {last}"
            yield self._text(headline, options, "dim")
            for chart in _charts(shown):
                yield chart.drawn(options.ascii_only)

    def _heading(self) -> str:
        load = self._graph.load
        if load is None or load.reported_at is None:
            return "graph; no rates, because the application does not run"
        behind = "" if not load.lag_seconds else f", {texts.duration(load.lag_seconds)} behind"
        as_of = formatting.age(load.reported_at, self._now)
        return f"graph, mean of the last {texts.duration(load.seconds)}{behind}, as of {as_of}"

    def _text(self, text: str, options: ConsoleOptions, style: str = "") -> Text:
        found = Text(text, style=style, overflow="ellipsis", no_wrap=True)
        return in_ascii(found) if options.ascii_only else found

    def _nodes(self, options: ConsoleOptions) -> Iterator[RenderableType]:
        nodes = self._graph.nodes
        position = {node.id: index for index, node in enumerate(nodes)}
        order = topological([[position[id] for id in node.inputs if id in position] for node in nodes])
        shown = [nodes[index] for index in order[:MOST_NODES]]
        place = {node.id: index for index, node in enumerate(shown)}
        readers: list[list[int]] = [[] for _ in shown]
        for index, node in enumerate(shown):
            for id in node.inputs:
                if id in place and place[id] < index:
                    readers[place[id]].append(index)
        items = [Item(tuple(found), _look(node)) for node, found in zip(shown, readers, strict=True)]
        lines = [self._line(row, shown, options) for row in rows(items)]
        if not lines:
            yield self._text("The version has no graph.", options)
            return
        widths = [max(line[column].cell_len for line in lines) for column in range(len(lines[0]))]
        table = Table.grid(padding=(0, _GAP, 0, 0))
        for column, width in _fitting(widths, options.max_width):
            numeric = column == _RATE
            table.add_column(width=width, no_wrap=True, overflow="ellipsis", justify="right" if numeric else "left")
        kept = [column for column, _ in _fitting(widths, options.max_width)]
        for line in lines:
            table.add_row(*(line[column] for column in kept))
        yield table
        if len(order) > MOST_NODES:
            yield self._text(f"… and {texts.count(len(order) - MOST_NODES, 'node')} more", options, "dim")

    def _line(self, row: Row, shown: Sequence[GraphNodeAnswer], options: ConsoleOptions) -> tuple[Text, ...]:
        if row.item is None:
            return (lane_text(row.cells, "", _COLOURS, ascii_only=options.ascii_only), *[Text()] * (_COLUMNS - 1))
        node = shown[row.item]
        sign, plain = _SIGNS.get(node.type, ("○", "o") if node.type in SIDES else ("■", "#"))
        drawing = lane_text(row.cells, plain if options.ascii_only else sign, _COLOURS, ascii_only=options.ascii_only)
        found = self._graph.figures.get(node.id, Figures())
        busy = Text()
        if found.busy is not None:
            part = bar(min(1.0, found.busy), _BUSY, ascii_only=options.ascii_only)
            busy = Text.assemble((part, "yellow" if found.slowest else "cyan"), f" {texts.share(found.busy)} busy")
        line = (
            drawing,
            Text(texts.clipped(node.name, _NAME), style="dim" if node.type in SIDES else "bold"),
            Text(texts.clipped(described(node), _NAME), style="dim"),
            Text("" if found.rate is None else texts.rate(found.rate)),
            busy,
            Text(found.state),
            Text(", ".join([*(["slowest"] if found.slowest else []), *found.warnings]), style="yellow"),
        )
        return (drawing, *(in_ascii(text) if options.ascii_only else text for text in line[1:]))

    def _width(self, options: ConsoleOptions) -> int:
        return max(1, min(MOST_EPOCHS, options.max_width - _LABEL - _ROOM))


_COLUMNS, _RATE = 7, 3
_OPTIONAL = (2, 5, 6, 4)
"""Columns that are omitted if there is no room, in this order: kind, state, warnings, busy time."""


def _fitting(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Columns with their widths. The name is shortened after the optional columns have been omitted."""
    kept = [column for column, width in enumerate(widths) if width]
    for column in _OPTIONAL:
        if sum(widths[each] + _GAP for each in kept) > room and column in kept:
            kept.remove(column)
    over = sum(widths[each] + _GAP for each in kept) - room
    return [(column, max(4, widths[column] - over) if column == 1 and over > 0 else widths[column]) for column in kept]


def _look(node: GraphNodeAnswer) -> str:
    if node.type in ENDS:
        return "sink" if node.type == "sink" else "source"
    return "plain" if node.type in SIDES else "operator"


@dataclass(frozen=True)
class _Chart:
    label: str
    values: Sequence[float | None]
    shown: Callable[[float], str]

    def drawn(self, ascii_only: bool) -> RenderableType:
        known = [value for value in self.values if value is not None]
        most = max(known, default=0.0)
        lines = columns(self.values, HEIGHT, most, ascii_only=ascii_only)
        beside = [f"at most {self.shown(most)}", "", f"latest {self.shown(known[-1])}"]
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=_LABEL - 1, no_wrap=True, style="dim")
        grid.add_column(no_wrap=True, style="cyan")
        grid.add_column(no_wrap=True, style="dim")
        for number, (line, said) in enumerate(zip(lines, beside, strict=True)):
            grid.add_row(self.label if number == 0 else "", line, said)
        return grid


def _charts(epochs: Sequence[Epoch]) -> Iterator[_Chart]:
    charts = (
        _Chart("duration", [_seconds(epoch) for epoch in epochs], texts.duration),
        _Chart("rows in", [epoch.rows_in for epoch in epochs], _rows),
        _Chart("rows out", [epoch.rows_out for epoch in epochs], _rows),
        _Chart("changed", [epoch.state_rows for epoch in epochs], _rows),
    )
    return (chart for chart in charts if any(value is not None for value in chart.values))


def _seconds(epoch: Epoch) -> float | None:
    return None if epoch.committed_at is None else (epoch.committed_at - epoch.started_at).total_seconds()


def _rows(number: float) -> str:
    return f"{texts.short(number)} {'row' if number == 1 else 'rows'}"
