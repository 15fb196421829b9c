"""``lineage``: the graph of snapshots, with each snapshot's epoch, names, changes, counts and age."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.lane_signs import COLOURS, in_ascii, lane_text
from epochal.cli.options import Json, Limit, Name, Url
from epochal.cli.session import connected
from epochal.client.models import Change, Lineage, LineageLabel, LineageNode
from epochal.contracts.identity import EpochKey
from epochal.drawing.lanes import Row, rows
from epochal.standing_queries.command_results import CARRIED_OUT, REFUSED
from epochal.wire.lineage_entries import Entry, entries, items
from epochal.wire.projects import local_name, project_of

app = typer.Typer()


# Minimum width for the columns of counts.
_WIDTH_FOR_COUNTS = 100


_GAP = 2


class LineageFormat(StrEnum):
    """Output formats: ``text`` for terminals, ``dot`` for Graphviz, ``svg``, ``json``."""

    text = "text"
    json = "json"
    dot = "dot"
    svg = "svg"


@app.command()
def lineage(
    name: Name,
    limit: Limit = 100,
    every: Annotated[bool, typer.Option("--all", help="Show every epoch; do not fold plain epochs.")] = False,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Continue after a page; its last line prints the cursor.")
    ] = None,
    branch: Annotated[
        str | None, typer.Option("--branch", help="Only epochs of this branch, not folded. --json shows branches.")
    ] = None,
    first: Annotated[int | None, typer.Option("--first", min=1, help="With --branch: from this epoch on.")] = None,
    last: Annotated[int | None, typer.Option("--last", min=1, help="With --branch: up to this epoch.")] = None,
    format: Annotated[
        LineageFormat,
        typer.Option("--format", help="Output format. dot and svg are folded and begin with the newest snapshot."),
    ] = LineageFormat.text,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show the tree of snapshots: epochs, savepoints, forks, rollbacks, upgrades. Plain epochs are folded."""
    if format in (LineageFormat.dot, LineageFormat.svg):
        if as_json or every or cursor or branch:
            raise typer.BadParameter(
                f"{format.value} cannot be combined with --json, --all, --branch or --cursor.", param_hint="--format"
            )
        with connected(url, as_json) as session:
            kind: Literal["dot", "svg"] = "dot" if format is LineageFormat.dot else "svg"
            sys.stdout.write(session.client.application(name).lineage_drawing(kind, limit))
        return
    with connected(url, as_json or format is LineageFormat.json) as session:
        fold = not every and branch is None
        application = session.client.application(name)
        tree = application.lineage(limit, fold=fold, cursor=cursor, branch=branch, first=first, last=last)
        session.output.result(tree, LineageView(tree, fold=fold))


# The columns: graph, epochs, text, (rows in, changed,) age.
_COLUMNS, _COLUMNS_WITH_COUNTS, _TEXT = 4, 6, 2


class LineageView:
    """Renders a lineage in the width of the console, in ASCII if the console's encoding requires it."""

    def __init__(self, lineage: Lineage, *, fold: bool = True, now: datetime | None = None) -> None:
        self._lineage = lineage
        self._entries = entries(lineage, fold)
        self._rows = rows(items(self._entries))
        self._now = now
        self._nodes = {node.key: node for node in lineage.nodes}
        self._parents = {edge.target: edge.source for edge in lineage.edges}
        self._labels = {edge.target: edge.label for edge in lineage.edges}
        branches = dict.fromkeys(cell.line for row in self._rows for cell in row.cells if cell.line is not None)
        self._colours = {branch: COLOURS[number % len(COLOURS)] for number, branch in enumerate(branches)}
        self._tips = self._find_tips()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            yield Text(f"{self._lineage.application} has no snapshots.", style="dim")
            return
        counted = options.max_width >= _WIDTH_FOR_COUNTS
        shown = [self._shown(row, counted, options.ascii_only) for row in self._rows]
        widths = [max(cells[index].cell_len for cells in shown) for index in range(len(shown[0]))]
        # Only the text column may be truncated.
        widths[_TEXT] = max(1, min(widths[_TEXT], options.max_width - sum(widths) + widths[_TEXT] - _GAP * len(widths)))
        table = Table.grid(padding=(0, _GAP, 0, 0), expand=False)
        for index, width in enumerate(widths):
            justify: JustifyMethod = "left" if index <= _TEXT else "right"
            table.add_column(no_wrap=True, overflow="ellipsis", width=width, justify=justify)
        for cells in shown:
            table.add_row(*cells)
        yield table
        if self._lineage.next_cursor is not None:
            more = f"Older snapshots: epochal lineage {self._lineage.application} --cursor {self._lineage.next_cursor}"
            yield Text(more, style="dim", no_wrap=True, overflow="ignore")

    def _shown(self, row: Row, counted: bool, ascii_only: bool) -> tuple[Text, ...]:
        entry = None if row.item is None else self._entries[row.item]
        folded, single = (":", "*") if ascii_only else ("┊", "●")
        sign = folded if entry is not None and entry.folded else single
        drawing = lane_text(row.cells, sign, self._colours, ascii_only=ascii_only)
        if entry is None:
            return (drawing, *[Text()] * ((_COLUMNS_WITH_COUNTS if counted else _COLUMNS) - 1))
        counts = _counts(entry) if counted else ()
        texts = (_epochs(entry), self._text(entry), *counts, self._age(entry))
        return (drawing, *(in_ascii(text) if ascii_only else text for text in texts))

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
        parts += [Text("files deleted", style="dim")] if node.collected else []
        return Text(" · ", style="dim").join(parts)

    def _changes(self, node: LineageNode) -> list[Text]:
        parent = self._nodes.get(self._parents.get(node.key, node.key))
        return phrases(node, parent if parent is not node else None, self._labels.get(node.key))

    def _find_tips(self) -> dict[EpochKey, str]:
        """The latest snapshot of each application, with the application's name."""
        lineage = self._lineage
        tips: dict[str, EpochKey] = {} if lineage.head is None else {lineage.application: lineage.head}
        for entry in self._entries:
            tips.setdefault(entry.newest.application, entry.newest.key)
        return {key: application for application, key in tips.items()}

    def _age(self, entry: Entry) -> Text:
        return Text(formatting.age(entry.newest.committed_at, self._now), style="dim")


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


def phrases(node: LineageNode, before: LineageNode | None, label: LineageLabel | None) -> list[Text]:
    """Descriptions of a snapshot's changes, author and message. ``before``: the parent, if it is known."""
    texts: list[Text] = [_phrase(change, node, before) for change in node.changes]
    if label is not None and (label.by or label.message):
        by = f"by {label.by}" if label.by else ""
        texts.append(Text.assemble(by, ": " if by and label.message else "", (label.message or "", "italic")))
    return texts


def _phrase(change: Change, node: LineageNode, before: LineageNode | None) -> Text:
    detail = change.detail
    match change.kind:
        case "transaction":
            how = {"abort": "dropped", "commit": "committed by hand"}.get(detail["action"], change.kind)
            return Text(f"sink {detail['sink']}: {how} by {detail['by']}", style="red")
        case "rescale" if detail.keys() & {"parallelism", "parallelisms"}:
            usual = [" → ".join(map(str, detail["parallelism"]))] if "parallelism" in detail else []
            own = [f"{name} {before} → {after}" for name, (before, after) in detail.get("parallelisms", {}).items()]
            emptied = [f"{table} starts empty" for table in detail.get("emptied", ())]
            return _assembled("rescale", ", ".join([*usual, *own, *emptied]))
        case "upgrade" if "artifact" in detail:
            codes = " → ".join(formatting.code(code) for code in detail["artifact"])
            watermarks = _watermarks(detail.get("event_times") or {})
            return _assembled("upgrade", ", ".join([codes, *watermarks, *_accepted(detail)]))
        case "parameters" | "sinks" | "configuration" if isinstance(detail.get("changed"), Mapping):
            return _assembled(change.kind, ", ".join([_changed(detail["changed"]), *_accepted(detail)]))
        case "queries":
            by_kind = {what: ids for what, ids in detail.items() if what != CARRIED_OUT}
            return _assembled(
                "queries", "; ".join(f"{_said(what)} {', '.join(map(str, ids))}" for what, ids in by_kind.items())
            )
        case kind:
            about = [_parameters(before, node)]
            if before is None or before.artifact != node.artifact:
                about.insert(0, formatting.code(node.artifact))
            return _assembled(_began(kind, detail, node, before), " ".join(filter(None, about)))


def _assembled(said: str, about: str) -> Text:
    return Text.assemble(said, (f" {about}" if about else "", "dim"))


def _began(kind: str, detail: Mapping[str, Any], node: LineageNode, before: LineageNode | None) -> str:
    """Describe the start of a branch. For an import, name the exported application and its project."""
    origin = detail.get("origin")
    if kind == "import" and isinstance(origin, Mapping) and {"application", "epoch"} <= origin.keys():
        source, here = str(origin["application"]), project_of(node.branch)
        named = formatting.imported_from(local_name(source), origin["epoch"], project_of(source), here)
        return f"imported from {named}"
    return kind if before is None or before.branch == node.branch else f"{kind} of {before.application}"


def _said(what: str) -> str:
    """Name of a command result of standing queries."""
    return "refused command" if what == REFUSED else what


def _changed(changed: Mapping[str, Any]) -> str:
    """``late_minutes 15 → 30, out unset → /data``."""
    pairs = {
        name: pair if isinstance(pair, list) and len(pair) == 2 else [None, pair] for name, pair in changed.items()
    }
    return ", ".join(f"{name} {_value(was)} → {_value(now)}" for name, (was, now) in pairs.items())


def _watermarks(changed: Mapping[str, Any]) -> Iterator[str]:
    """``watermark ts: delay 10 seconds → 5 seconds``, ``watermark ts removed``."""
    for name, (was, now) in changed.items():
        if was is None or now is None:
            yield f"watermark {name} {'added' if was is None else 'removed'}"
        else:
            different = {key: [was.get(key), now.get(key)] for key in {**was, **now} if was.get(key) != now.get(key)}
            yield f"watermark {name}: {_changed(different)}"


def _accepted(detail: Mapping[str, Any]) -> Iterator[str]:
    """``accepted totals.lo (argument v → w)``, ``accepted totals.mean (counts rows since epoch 6)``."""
    for each in detail.get("accepted") or ():
        if each.get("what") == "partial":
            yield f"accepted {each['name']} (counts rows since epoch {each['since']})"
        else:
            yield f"accepted {each['name']} ({each['what']} {each['before']} → {each['after']})"


def _value(value: Any) -> str:
    return "unset" if value is None else str(value)


def _parameters(before: LineageNode | None, node: LineageNode) -> str:
    """All parameters at the start, later the changed ones: ``late_minutes 15 → 30``."""
    now = node.parameters or {}
    if before is None:
        return formatting.values(now)
    then = before.parameters or {}
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return ", ".join(f"{name} {then.get(name, 'unset')} → {now.get(name, 'unset')}" for name in names)
