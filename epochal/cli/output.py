"""Output of commands: results (one JSON document, or tables) on standard output, all else on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.text import Text

from epochal.background.service import BackgroundService

QUIET_SECONDS = 2.5
"""Time after which a command without a spinner prints what it waits for."""
REPEATED_SECONDS = 30.0
"""Interval between two such lines."""


@dataclass(frozen=True)
class Output:
    """``as_json``: results as one JSON document on standard output; notes for people stay on standard error."""

    as_json: bool
    results: Console
    notes: Console
    _waits: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, as_json: bool) -> Output:
        return cls(as_json, Console(highlight=False), Console(file=_terminal(), stderr=True, highlight=False))

    @property
    def animated(self) -> bool:
        """Spinners and progress bars are drawn on a terminal only."""
        return sys.stderr.isatty() and not self.as_json

    @contextmanager
    def busy(self, doing: str) -> Iterator[Callable[[str], None]]:
        """Show on standard error what the command is waiting for: a spinner on a terminal; elsewhere, and with
        ``--json``, a line when the block has taken ``QUIET_SECONDS``, repeated every ``REPEATED_SECONDS``.

        The yielded function shows progress. Nested blocks show the outer one only.
        """
        if self._waits:
            yield lambda progress: None
            return
        self._waits.append(doing)
        try:
            with self._spinner(doing) if self.animated else self._lines(doing) as progress:
                yield progress
        finally:
            self._waits.pop()

    @contextmanager
    def answered(self, url: str) -> Iterator[None]:
        """Show that the command waits for the control plane, unless it uses spinners."""
        if self.animated:
            yield
            return
        with self.busy(f"Waiting for the control plane at {url}"):
            yield

    @contextmanager
    def _spinner(self, doing: str) -> Iterator[Callable[[str], None]]:
        with self.notes.status(f"{escape(doing)} ..") as status:
            yield lambda progress: status.update(f"{escape(doing)} .. [dim]{escape(progress)}[/dim]")

    @contextmanager
    def _lines(self, doing: str) -> Iterator[Callable[[str], None]]:
        latest = [""]

        def show() -> None:
            self.notes.print(Text(f"{doing} .. {latest[0]}".rstrip(), style="dim"))

        def progress(text: str) -> None:
            latest[0] = text

        service = BackgroundService("waiting", show, REPEATED_SECONDS, delay=QUIET_SECONDS)
        service.start()
        try:
            yield progress
        finally:
            service.stop(timeout=None)

    def result(self, document: Any, view: RenderableType | Callable[[], RenderableType]) -> None:
        """Print the result: the document with ``--json``, otherwise the view."""
        if self.as_json:
            self.document(document)
        else:
            self.results.print(view() if callable(view) else view)

    def document(self, document: Any) -> None:
        sys.stdout.write(encode(document) + "\n")
        sys.stdout.flush()

    def line(self, document: Any) -> None:
        """Print one document of a stream on one line."""
        sys.stdout.write(encode(document, indent=None) + "\n")
        sys.stdout.flush()

    def note(self, text: RenderableType) -> None:
        """Print a note on standard error, except with ``--json``."""
        if not self.as_json:
            self.notes.print(text)

    def warn(self, text: str) -> None:
        self.notes.print(Text.assemble(("warning: ", "yellow"), text))


def _terminal() -> IO[str] | None:
    """Duplicate standard error, so that notes are printed while Spark's messages are dropped."""
    try:
        if sys.stderr.fileno() != 2:
            return None
    except (OSError, ValueError):  # replaced by an object without a descriptor
        return None
    return os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="replace")


def encode(document: Any, indent: int | None = 2) -> str:
    return json.dumps(to_jsonable_python(_plain(document)), indent=indent, ensure_ascii=False)


def _plain(document: Any) -> Any:
    if isinstance(document, BaseModel):
        return document.model_dump(mode="json", by_alias=True)
    if isinstance(document, Sequence) and not isinstance(document, str | bytes):
        return {"items": [_plain(item) for item in document]}
    return document
