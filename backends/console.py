"""The console sink, for development: rows are printed when their epoch commits, never earlier.

Rows travel in the handles, which go through the manifest: only the first few rows of each task and the number of the
others. A commit that is repeated after a crash may print its epoch again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from epochal.backends import json_lines
from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochScope, TaskScope
from epochal.errors import OptionError

LONGEST_TEXT = 40
LARGEST_PAYLOAD = 4_000


class ConsoleBackend(SinkBackend):
    """Prints at most ``rows`` rows of each epoch to the driver's standard output."""

    def __init__(self, rows: int = 20) -> None:
        if rows < 1:
            raise OptionError(f"The console sink's rows is {rows!r}; it must be an integer above 0.")
        self._rows = rows

    @property
    def kind(self) -> str:
        return "console"

    @property
    def target(self) -> str:
        """Any number of sinks and applications may print."""
        return "console:"

    def check(self, schema: pa.Schema) -> None:
        """Do nothing: all columns can be printed."""

    def recover(self, epoch: EpochScope) -> None:
        """Do nothing: the console has no owner."""

    def start(self, task: TaskScope) -> ConsoleTransaction:
        return ConsoleTransaction(task, self._rows)

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        total = sum(handle.rows for handle in handles)
        if not total:
            return
        rows = [row for handle in handles for row in handle.payload.get("rows", ())][: self._rows]
        columns = next(handle.payload["columns"] for handle in handles if handle.rows)
        title = f"{handles[0].owner}, epoch {epoch.epoch}: {total} row{'s' if total != 1 else ''}"
        lines = [title, *_table(columns, rows)]
        if total > len(rows):
            lines.append(f"and {total - len(rows)} more")
        print("\n".join(lines), file=sys.stdout, flush=True)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        """Do nothing: no row has been printed."""

    def sweep(self, epoch: EpochScope, keep: Sequence[Handle]) -> int:
        return 0


class ConsoleTransaction(SinkTransaction):
    """Keeps the first rows as text."""

    def __init__(self, task: TaskScope, rows: int) -> None:
        self._task = task
        self._limit = rows
        self._columns: list[str] = []
        self._shown: list[list[str]] = []
        self._size = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._columns = batch.schema.names
        self._rows += batch.num_rows
        remaining = self._limit - len(self._shown)
        for row in zip(*map(_shown, batch.slice(0, max(remaining, 0)).columns), strict=True):
            texts = [_text(value) for value in row]
            self._size += len(json.dumps(texts))
            if self._size > LARGEST_PAYLOAD:
                self._limit = len(self._shown)
                return
            self._shown.append(texts)

    def pre_commit(self) -> Handle:
        payload: dict[str, Any] = {"columns": self._columns, "rows": self._shown} if self._rows else {}
        return Handle(owner=self._task.owner, subtask=self._task.subtask, rows=self._rows, bytes=0, payload=payload)

    def discard(self) -> None:
        """Do nothing: the rows are in this object."""


def _shown(column: pa.Array) -> list[Any]:
    values: list[Any] = (json_lines.texts(column) if pa.types.is_nested(column.type) else column).to_pylist()
    return values


def _text(value: Any) -> str:
    text = "null" if value is None else str(value)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(value.ljust(width) for value, width in zip(values, widths, strict=True)).rstrip()

    return [line(columns), "  ".join("─" * width for width in widths), *map(line, rows)]
