"""Answers that notebooks show as pictures and tables.

``_repr_html_`` sends no request. All text is escaped; long answers are cut, and say by how much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochal.client.graphs import drawn_nodes
from epochal.contracts.catalog import EpochRecord
from epochal.drawing import texts
from epochal.drawing.chart import Series, charts_svg
from epochal.drawing.graph import graph_svg
from epochal.drawing.table import table, table_of
from epochal.wire import history, state
from epochal.wire.lineage import LineageAnswer
from epochal.wire.lineage_drawing import lineage_picture
from epochal.wire.versions import VersionAnswer

MOST_CHARTS = 3


class Lineage(LineageAnswer):
    __doc__ = LineageAnswer.__doc__

    def _repr_html_(self) -> str:
        """The tree of snapshots, as git draws it, with folded runs of plain epochs."""
        return lineage_picture(self)


class Version(VersionAnswer):
    __doc__ = VersionAnswer.__doc__

    def _repr_html_(self) -> str:
        """The graph of the version."""
        nodes = () if self.graph is None else self.graph.nodes
        return graph_svg(f"Graph of version {self.number}", drawn_nodes(nodes, {}))


class EpochList(list[EpochRecord]):
    """Epochs, newest first."""

    def _repr_html_(self) -> str:
        """Charts of durations and rows, oldest left."""
        if not self:
            return charts_svg("Epochs", [], "", "", "No epochs.")
        shown = self[::-1]
        seconds = [
            None if each.committed_at is None else (each.committed_at - each.started_at).total_seconds()
            for each in shown
        ]
        aborted = frozenset(index for index, each in enumerate(shown) if each.state == "aborted")
        hints = [
            f"epoch {each.epoch}, {each.state} {texts.moment(each.committed_at or each.started_at)}" for each in shown
        ]

        def series(label: str, values: list[int | None]) -> Series:
            said = [f"{hint}: {_rows(value or 0)}" for hint, value in zip(hints, values, strict=True)]
            return Series(label, values, _rows, said, aborted)

        durations = [f"{hint}: {texts.duration(value or 0)}" for hint, value in zip(hints, seconds, strict=True)]
        charts = [
            Series("Duration of epochs", seconds, texts.duration, durations, aborted),
            series("Rows in", [each.rows_in for each in shown]),
            series("Changed rows of state", [each.state_rows for each in shown]),
        ]
        return charts_svg("Epochs", charts, f"epoch {shown[0].epoch}", f"epoch {shown[-1].epoch}", "No ended epochs.")


class StateTables(list[state.StateTableAnswer]):
    """State tables of an application."""

    def _repr_html_(self) -> str:
        """A table of the tables, with rows and columns."""
        rows = [
            (
                each.table,
                each.operator,
                each.kind if each.scope == "keyed" else f"{each.scope} {each.kind}",
                each.rows,
                ", ".join(f"{column.name} {column.type}" for column in (*each.key, *each.sub_key)),
                ", ".join(f"{column.name} {column.type}" for column in each.value if not column.internal),
            )
            for each in self
        ]
        epochs = {each.epoch for each in self if each.epoch is not None}
        caption = f"State tables at epoch {max(epochs)}" if epochs else "State tables"
        return table(caption, ("table", "operator", "kind", "rows", "key", "value"), rows, keys=1)


class StateValue(state.StateValue):
    __doc__ = state.StateValue.__doc__

    def _repr_html_(self) -> str:
        """The key and its value, entries or instances as a table."""
        caption = f"{self.table} at epoch {self.epoch}"
        if self.entries is not None:
            return table_of(caption, [self.key] * len(self.entries), self.entries)
        if self.instances is not None and self.value is None:
            keys = [{**self.key, "instance": each.instance} for each in self.instances]
            return table_of(caption, keys, [each.value for each in self.instances])
        return table_of(caption, [self.key], [self.value])


class StateLookup(state.StateLookup):
    __doc__ = state.StateLookup.__doc__

    def _repr_html_(self) -> str:
        """A row for each key, in the order of the request."""
        keys = [{"key": f"no. {number}"} for number in range(1, len(self.values) + 1)]
        missing = sum(each is None for each in self.values)
        notes = [f"{texts.count(missing, 'key')} without a row"] if missing else []
        return table_of(f"{self.table} at epoch {self.epoch}", keys, self.values, *notes)


class Scan(state.Scan):
    __doc__ = state.Scan.__doc__

    def _repr_html_(self) -> str:
        """The rows as a table."""
        more = ["more rows follow on the next page"] if self.next_cursor is not None else []
        notes = [*more, *([self.note] if self.note else [])]
        caption = f"{self.table} at epoch {self.epoch}: {_rows(len(self.items))}"
        return table_of(caption, [each.key for each in self.items], [each.value for each in self.items], *notes)


class KeyHistory(history.KeyHistory):
    __doc__ = history.KeyHistory.__doc__

    def _repr_html_(self) -> str:
        """Charts of the numbers over the epochs, and the changes as a table, newest first."""
        heads = list(dict.fromkeys(name for each in self.items for name in each.new or each.old or ()))
        rows = [(each.epoch, texts.moment(each.at), _kind(each), *_columns(each.new, heads)) for each in self.items]
        of_key = ", ".join(f"{name} {texts.value(value)}" for name, value in self.key.items())
        notes = ["older changes follow"] if self.next_cursor is not None else []
        notes += [f"known since epoch {self.known_since.epoch}"] if self.known_since is not None else []
        notes += [self.note] if self.note else []
        changes = table(f"{self.table}, {of_key}", ("epoch", "at", "change", *heads), rows, *notes, keys=1)
        return f"<div>{self._charts(heads)}{changes}</div>"

    def _charts(self, heads: list[str]) -> str:
        items = self.items[::-1]
        series = []
        for name in heads:
            values = [_number(each.new, name) for each in items]
            if any(value is not None for value in values):
                hints = [
                    f"epoch {each.epoch}: {name} {texts.value(value)}"
                    for each, value in zip(items, values, strict=True)
                ]
                series.append(Series(name, values, _plain, hints))
        if len(items) < 2 or not series:
            return ""
        return charts_svg(
            f"History of {self.table}", series[:MOST_CHARTS], f"epoch {items[0].epoch}", f"epoch {items[-1].epoch}"
        )


class Blame(history.Blame):
    __doc__ = history.Blame.__doc__

    def _repr_html_(self) -> str:
        """The last change of the key, and the code and input of its epoch."""
        change = self.change
        facts: list[tuple[str, Any]] = [
            ("key", self.key),
            ("epoch", f"{change.epoch} of {change.application}, {texts.moment(change.at)}"),
            ("before", change.old),
            ("after", change.new),
            ("code", f"{self.filename or 'artifact'} {self.artifact[:8]}, version {self.version or 'unknown'}"),
            ("parameters", dict(self.parameters) or "none"),
        ]
        for name, each in self.slices.items():
            rows = "" if each.rows is None else f"{_rows(each.rows)}, "
            facts.append((f"input {name}", f"{rows}from {texts.value(each.start)} to {texts.value(each.end)}"))
        return table(f"Last change of a key of {self.table}", ("", ""), facts, keys=1)


def _kind(change: history.KeyChangeAnswer) -> str:
    if change.new is not None:
        return ""
    return "expired" if change.expired else "deleted"


def _columns(row: Mapping[str, Any] | None, heads: list[str]) -> list[Any]:
    return ["" if row is None else row.get(name, "") for name in heads]


def _number(row: Mapping[str, Any] | None, name: str) -> float | None:
    found = None if row is None else row.get(name)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return found if is_number else None


def _rows(number: float) -> str:
    return f"{texts.short(number)} {'row' if number == 1 else 'rows'}"


def _plain(number: float) -> str:
    return texts.short(number) if abs(number) >= 10_000 else f"{number:.6g}"
