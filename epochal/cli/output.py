"""Where a command's words go: one JSON document or tables on standard output, everything else on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.text import Text


@dataclass(frozen=True)
class Output:
    """``as_json``: results as one JSON document, no words for people on standard output."""

    as_json: bool
    results: Console
    notes: Console

    @classmethod
    def make(cls, as_json: bool) -> Output:
        return cls(as_json, Console(highlight=False), Console(file=_terminal(), stderr=True, highlight=False))

    @property
    def animated(self) -> bool:
        """May spinners and progress bars be drawn? Only where a person looks, never into a file or a pipe."""
        return sys.stderr.isatty() and not self.as_json

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """A spinner where a person looks, while something takes long."""
        if not self.animated:
            yield
            return
        with self.notes.status(f"{escape(doing)} .."):
            yield

    def result(self, document: Any, view: RenderableType | Callable[[], RenderableType]) -> None:
        """The command's result: the document for programs, or the view for people, made only for them."""
        if self.as_json:
            self.document(document)
        else:
            self.results.print(view() if callable(view) else view)

    def document(self, document: Any) -> None:
        sys.stdout.write(encode(document) + "\n")
        sys.stdout.flush()

    def line(self, document: Any) -> None:
        """One of a stream of documents, on a line of its own."""
        sys.stdout.write(encode(document, indent=None) + "\n")
        sys.stdout.flush()

    def note(self, text: RenderableType) -> None:
        """A word to the person at the terminal, beside the result."""
        if not self.as_json:
            self.notes.print(text)

    def warn(self, text: str) -> None:
        self.notes.print(Text.assemble(("warning: ", "yellow"), text))


def _terminal() -> IO[str] | None:
    """The terminal by a way of its own: while Spark starts, standard error is dropped, and spinners are to turn."""
    if not sys.stderr.isatty():
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
