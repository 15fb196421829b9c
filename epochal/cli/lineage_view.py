"""A lineage as people see it: the graph, and beside each snapshot its epoch, names, changes, counts and age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from epochal.cli import words
from epochal.cli.lineage_changes import phrases
from epochal.cli.lineage_folding import Entry, entries
from epochal.cli.lineage_layout import Cell, Glyph, Row, layout
from epochal.client.models import Lineage, LineageNode
from epochal.contracts.identity import EpochKey

UNICODE: Mapping[Glyph, str] = {
    Glyph.BLANK: " ",
    Glyph.LINE: "│",
    Glyph.SNAPSHOT: "●",
    Glyph.FOLDED: "┊",
    Glyph.JOIN: "├",
    Glyph.ACROSS: "─",
    Glyph.CROSS: "┼",
    Glyph.TEE: "┴",
    Glyph.END: "╯",
}
ASCII: Mapping[Glyph, str] = {
    Glyph.BLANK: " ",
    Glyph.LINE: "|",
    Glyph.SNAPSHOT: "*",
    Glyph.FOLDED: ":",
    Glyph.JOIN: "|",
    Glyph.ACROSS: "-",
    Glyph.CROSS: "+",
    Glyph.TEE: "'",
    Glyph.END: "'",
}
_SIGNS = str.maketrans("–→·“”", '->|""')
_LEFT_OF_RUN = frozenset({Glyph.JOIN, Glyph.ACROSS, Glyph.CROSS, Glyph.TEE})
_RUN = frozenset({Glyph.ACROSS, Glyph.CROSS, Glyph.TEE, Glyph.END})
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
# Narrower than this the counts are left out, so that names and changes have room.
_WIDTH_FOR_COUNTS = 100
_GAP = 2
# The columns: graph, epochs, text, (rows in, changed,) age.
_COLUMNS, _COLUMNS_WITH_COUNTS, _TEXT = 4, 6, 2


class LineageView:
    """Renders a lineage as wide as the console; in ASCII where the console's encoding has nothing else."""

    def __init__(self, lineage: Lineage, *, fold: bool = True, now: datetime | None = None) -> None:
        self._lineage = lineage
        self._entries = entries(lineage, fold)
        self._rows = layout(self._entries)
        self._now = now
        self._nodes = {node.key: node for node in lineage.nodes}
        self._parents = {edge.target: edge.source for edge in lineage.edges}
        self._labels = {edge.target: edge.label for edge in lineage.edges}
        branches = dict.fromkeys(cell.branch for row in self._rows for cell in row.cells if cell.branch is not None)
        self._colours = {branch: _COLOURS[number % len(_COLOURS)] for number, branch in enumerate(branches)}
        self._tips = self._find_tips()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            yield Text(f"{self._lineage.application} has no snapshots yet.", style="dim")
            return
        glyphs = ASCII if options.ascii_only else UNICODE
        counted = options.max_width >= _WIDTH_FOR_COUNTS
        shown = [self._shown(row, glyphs, counted, options.ascii_only) for row in self._rows]
        widths = [max(cells[index].cell_len for cells in shown) for index in range(len(shown[0]))]
        # Only the text may be cut: half a graph, or half a number, would be wrong.
        widths[_TEXT] = max(1, min(widths[_TEXT], options.max_width - sum(widths) + widths[_TEXT] - _GAP * len(widths)))
        table = Table.grid(padding=(0, _GAP, 0, 0), expand=False)
        for index, width in enumerate(widths):
            justify: JustifyMethod = "left" if index <= _TEXT else "right"
            table.add_column(no_wrap=True, overflow="ellipsis", width=width, justify=justify)
        for cells in shown:
            table.add_row(*cells)
        yield table
        if self._lineage.next_cursor is not None:
            more = f"Older ones: epochal lineage {self._lineage.application} --cursor {self._lineage.next_cursor}"
            yield Text(more, style="dim", no_wrap=True, overflow="ignore")

    def _shown(self, row: Row, glyphs: Mapping[Glyph, str], counted: bool, in_ascii: bool) -> tuple[Text, ...]:
        drawing = self._drawing(row.cells, glyphs)
        if row.entry is None:
            return (drawing, *[Text()] * ((_COLUMNS_WITH_COUNTS if counted else _COLUMNS) - 1))
        entry = self._entries[row.entry]
        counts = _counts(entry) if counted else ()
        texts = (_epochs(entry), self._text(entry), *counts, self._age(entry))
        return (drawing, *(_in_ascii(text) if in_ascii else text for text in texts))

    def _drawing(self, cells: Sequence[Cell], glyphs: Mapping[Glyph, str]) -> Text:
        text = Text()
        for cell, following in pairwise((*cells, Cell(Glyph.BLANK))):
            colour = self._colours.get(cell.branch or "", "dim")
            bold = " bold" if cell.glyph is Glyph.SNAPSHOT else ""
            text.append(glyphs[cell.glyph], colour + bold)
            joined = cell.glyph in _LEFT_OF_RUN and following.glyph in _RUN
            text.append(glyphs[Glyph.ACROSS] if joined else " ", self._colours.get(following.branch or "", "dim"))
        text.right_crop(1)
        return text

    def _text(self, entry: Entry) -> Text:
        if entry.folded:
            return Text(f"{entry.epochs:,} epochs", style="dim")
        node = entry.newest
        parts: list[Text] = []
        tip = self._tips.get(node.key)
        if tip is not None:
            parts.append(Text.assemble((tip, f"bold {self._colours[node.branch]}")))
        parts += [Text.assemble(("savepoint ", "yellow"), (name, "bold yellow")) for name in node.savepoints]
        parts += [Text.assemble(("tag ", "yellow"), (name, "bold yellow")) for name in node.tags]
        parts += [Text("pinned", style="yellow")] if node.pinned else []
        if node.state != "committed":
            parts.append(Text(node.state, style="bold"))
        parts += self._changes(node)
        parts += [Text(f"“{node.message}”", style="italic")] if node.message else []
        parts += [Text("files are gone", style="dim")] if node.collected else []
        return Text(" · ", style="dim").join(parts)

    def _changes(self, node: LineageNode) -> list[Text]:
        parent = self._nodes.get(self._parents.get(node.key, node.key))
        return phrases(node, parent if parent is not node else None, self._labels.get(node.key))

    def _find_tips(self) -> dict[EpochKey, str]:
        """The latest snapshot of each application, and the application's name."""
        lineage = self._lineage
        tips: dict[str, EpochKey] = {} if lineage.head is None else {lineage.application: lineage.head}
        for entry in self._entries:
            tips.setdefault(entry.newest.application, entry.newest.key)
        return {key: application for application, key in tips.items()}

    def _age(self, entry: Entry) -> Text:
        return Text(words.age(entry.newest.committed_at, self._now), style="dim")


def _in_ascii(text: Text) -> Text:
    """The same text, its few signs beyond ASCII replaced one by one, so that styles stay where they are."""
    text.plain = text.plain.translate(_SIGNS).encode("ascii", "replace").decode()
    return text


def _epochs(entry: Entry) -> Text:
    if entry.folded:
        return Text(f"{entry.first}–{entry.newest.epoch}", style="dim")
    return Text(str(entry.newest.epoch), style="bold")


def _counts(entry: Entry) -> tuple[Text, Text]:
    """Rows read, and state rows changed; of a folded run, their sums."""
    rows = sum(node.counts.rows_in for node in entry.nodes)
    changed = sum(node.counts.state_rows for node in entry.nodes)
    style = "dim" if entry.folded else ""
    return Text(f"{rows:,} rows in", style=style), Text(f"{changed:,} changed", style=style)
