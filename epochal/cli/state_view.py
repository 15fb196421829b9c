"""Views of histories, blame, scans and differences, without internal columns.

Internal columns, such as the sum and the count of an average, are stored to compute other columns. Documents
(``--json``) contain all columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epochal.cli import formatting
from epochal.cli.formatting import Column, Listing
from epochal.cli.session import Session
from epochal.client import StateValue
from epochal.client.models import (
    Blame,
    DiffRow,
    KeyChange,
    KeyGroupSizes,
    KeyHistory,
    Scan,
    SnapshotDiff,
    SourceRange,
    SourceSlice,
)

_KINDS = {"added": "green", "changed": "yellow", "deleted": "red", "expired": "dim"}


Values = Mapping[str, Any]


Change = TypeVar("Change", KeyChange, DiffRow)


def history_view(history: KeyHistory) -> RenderableType:
    parts: list[RenderableType] = [_heading(history.key, history.table, history.branch, history.epoch)]
    if history.items:
        parts.append(_changes(history.items, names_keys=any(item.key != history.key for item in history.items)))
    else:
        parts.append(Text("No changes.", style="dim"))
    parts += since_notes(next((item.since for item in history.items if item.since), None))
    if history.note is not None:
        parts.append(Text(history.note, style="dim"))
    if history.next_cursor is not None:
        parts.append(Text("Older changes are omitted; use --limit to show more.", style="dim"))
    if history.known_since is not None:
        parts.append(Text(f"Changes before epoch {history.known_since.epoch} have expired.", style="dim"))
    return Group(*parts)


def key_groups_view(sizes: KeyGroupSizes, limit: int | None) -> RenderableType:
    """The key groups with the most rows, and the mean."""
    rows, groups = sum(sizes.rows), len(sizes.rows)
    heading = Text(
        f"{sizes.table}, epoch {sizes.epoch} of {sizes.branch}: {rows:,} rows, {formatting.size(sum(sizes.bytes))}"
    )
    heading.append(f", {rows / max(groups, 1):,.1f} rows in a key group on average", style="dim")
    table = Listing(
        Column("key group", numeric=True),
        Column("subtask", numeric=True),
        Column("rows", numeric=True),
        Column("share", numeric=True),
        Column("bytes", numeric=True),
    )
    for group in sorted(range(groups), key=lambda group: -sizes.rows[group])[:limit]:
        if sizes.rows[group]:
            share = f"{100 * sizes.rows[group] / rows:.1f} %"
            size, subtask = formatting.size(sizes.bytes[group]), str(group % sizes.parallelism)
            table.add(str(group), subtask, formatting.count(sizes.rows[group]), share, size)
    parts: list[RenderableType] = [heading, table]
    if sizes.files_read < sizes.files:
        parts.append(Text(f"Only {sizes.files_read:,} of {sizes.files:,} files were counted.", style="yellow"))
    return Group(*parts)


def blame_view(blame: Blame) -> RenderableType:
    change = blame.change
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    version = "" if blame.version is None else f"version {blame.version} of {change.application}, "
    rows = {
        "changed": f"epoch {change.epoch} of {change.branch}",
        "when": f"{change.at:%Y-%m-%d %H:%M:%S} UTC, {formatting.age(change.at)}",
        "what": difference(change.old, change.new, change.expired),
        "code": f"{version}{blame.filename or ''} {formatting.code(blame.artifact)}",
        "parameters": formatting.values(blame.parameters),
        "took effect": ", ".join(change.kind for change in blame.changes),
    }
    for name, said in rows.items():
        if said:
            grid.add_row(name, Text(said))
    for name, slice in blame.slices.items():
        grid.add_row(f"read of {name}", Text(_slice(slice)))
    return Group(_heading(blame.key, blame.table, blame.branch, blame.epoch), grid, *since_notes(change.since))


def scan_view(scan: Scan, name: str) -> RenderableType:
    if not scan.items:
        return Text(f"No rows at epoch {scan.epoch} of {scan.branch}.", style="dim")
    columns = [*scan.items[0].key, *scan.items[0].value]
    rows = [{**row.key, **row.value} for row in scan.items]
    table = Listing(*(Column(column, numeric=is_number(rows[0].get(column))) for column in columns))
    for row in rows:
        table.add(*(text_of(row.get(column)) for column in columns))
    ends = f"{len(scan.items)} rows · epoch {scan.epoch} of {scan.branch}"
    more = (
        "" if scan.next_cursor is None else f"\nMore: epochal scan {name} {scan.table} .. --cursor {scan.next_cursor}"
    )
    note = "" if scan.note is None else f"\n{scan.note}"
    return Group(table, *since_notes(scan.since), Text(ends + note + more, style="dim"))


def diff_view(diff: SnapshotDiff) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, side in (("from", diff.source), ("to", diff.target)):
        grid.add_row(
            name, Text(f"epoch {side.epoch} of {side.application} ({side.branch}), {formatting.code(side.artifact)}")
        )
    if diff.ancestor is not None and diff.between is not None and diff.between.source.epochs:
        grid.add_row("in common", Text(f"up to epoch {diff.ancestor.epoch} ({diff.ancestor.branch})"))
    grid.add_row("code", Text(diff.code))
    for parameter in diff.parameters:
        grid.add_row("parameter", Text(f"{parameter.name} {text_of(parameter.source)} → {text_of(parameter.target)}"))
    if diff.between is None:
        grid.add_row("between", Text("whole states were compared (epochs have expired, or are too many)"))
    else:
        for name, path in (("from", diff.between.source), ("to", diff.between.target)):
            for source, slice in path.slices.items():
                grid.add_row(f"read of {source}", Text(f"{_slice(slice)} ({slice.epochs} epochs, {name})"))
    table = Listing(
        Column("table"),
        Column("added", numeric=True),
        Column("changed", numeric=True),
        Column("deleted", numeric=True),
        Column("expired", numeric=True),
        Column("", flexible=True),
    )
    for item in diff.tables:
        counts = (
            formatting.count(item.added),
            formatting.count(item.changed),
            formatting.count(item.deleted),
            formatting.count(item.expired),
        )
        table.add(Text(item.table, style="bold"), *counts, Text(item.note or "", style="dim"))
    return Group(grid, Text(), table)


def diff_rows_view(rows: Sequence[DiffRow]) -> RenderableType:
    if not rows:
        return Text("No differences.", style="dim")
    table = Listing(Column(""), Column("key"), Column("values", flexible=True, folds=True))
    for row in rows:
        key = Text(", ".join(map(text_of, row.key.values())), style="bold")
        table.add(Text(row.kind, style=_KINDS[row.kind]), key, difference(row.old, row.new, row.kind == "expired"))
    return table


def since_notes(since: Mapping[str, int] | None) -> list[Text]:
    """One line for each epoch from which some columns count rows."""
    since = since or {}
    names = {epoch: [name for name, first in since.items() if first == epoch] for epoch in sorted({*since.values()})}
    return [
        Text(
            f"{', '.join(each)}: rows from epoch {epoch} on; incomplete for keys and windows of earlier epochs.", "dim"
        )
        for epoch, each in names.items()
    ]


def difference(old: Values | None, new: Values | None, expired: bool = False) -> str:
    """``flights 1 → 2``; all values of an added or deleted row."""
    if old is None or new is None:
        return ", ".join(f"{name}={text_of(value)}" for name, value in (new or old or {}).items()) + (
            "" if new is not None else " (expired)" if expired else " (deleted)"
        )
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} {text_of(old.get(name))} → {text_of(new.get(name))}" for name in names)


def text_of(value: Any) -> str:
    return "null" if value is None else str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _changes(items: Sequence[KeyChange], names_keys: bool) -> Listing:
    table = Listing(
        Column("epoch", numeric=True),
        Column("when"),
        Column("application", optional=True),
        *([Column("key")] if names_keys else []),
        Column("change", flexible=True, folds=True),
    )
    for item in items:
        key = [Text(", ".join(map(text_of, item.key.values())))] if names_keys else []
        when = Text(f"{item.at:%Y-%m-%d %H:%M:%S}", style="dim")
        table.add(
            Text(str(item.epoch), style="bold"),
            when,
            item.application,
            *key,
            difference(item.old, item.new, item.expired),
        )
    return table


def _heading(key: Values, table: str, branch: str, epoch: int) -> Text:
    named = ", ".join(map(text_of, key.values()))
    return Text.assemble((named, "bold"), (f"  {table} · epoch {epoch} of {branch}", "dim"))


def _slice(slice: SourceSlice | SourceRange) -> str:
    rows = "" if slice.rows is None else f"{slice.rows:,} rows, "
    detail = f" {_short(slice.detail)}" if isinstance(slice, SourceSlice) and slice.detail else ""
    return f"{rows}{_short(slice.start)} → {_short(slice.end)}{detail}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else text[:297] + "..."


@dataclass(frozen=True)
class Shown:
    """Removes the ``internal`` columns of one state table from answers."""

    internal: frozenset[str]

    @classmethod
    def of(cls, session: Session, application: str, table: str) -> Shown:
        """Read the internal columns from the current declaration; an unknown table has none."""
        tables = session.client.application(application).state_tables()
        columns = [column for each in tables if each.table == table for column in each.value]
        return cls(frozenset(column.name for column in columns if column.internal))

    def lookup(self, answer: StateValue) -> StateValue:
        entries = answer.entries and tuple(self._visible(entry) or {} for entry in answer.entries)
        update = {"value": self._visible(answer.value), "entries": entries, "since": self._visible(answer.since)}
        return answer.model_copy(update=update)

    def scan(self, page: Scan) -> Scan:
        items = tuple(row.model_copy(update={"value": self._visible(row.value)}) for row in page.items)
        return page.model_copy(update={"items": items, "since": self._visible(page.since)})

    def history(self, history: KeyHistory) -> KeyHistory:
        return history.model_copy(update={"items": tuple(map(self._of_epoch, history.items))})

    def blame(self, blame: Blame) -> Blame:
        return blame.model_copy(update={"change": self._of_epoch(blame.change)})

    def rows(self, rows: Sequence[DiffRow]) -> list[DiffRow]:
        return [self._change(row) for row in rows]

    def _of_epoch(self, change: KeyChange) -> KeyChange:
        return self._change(change).model_copy(update={"since": self._visible(change.since)})

    def _change(self, change: Change) -> Change:
        """Keep internal columns if only they differ, such as for an unchanged average."""
        old, new = self._visible(change.old), self._visible(change.new)
        return change if old == new else change.model_copy(update={"old": old, "new": new})

    def _visible(self, values: Values | None) -> dict[str, Any] | None:
        return None if values is None else {name: value for name, value in values.items() if name not in self.internal}
