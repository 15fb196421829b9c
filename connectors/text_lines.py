"""Splitting of text files into lines in the executors, for Spark's JSON and CSV parsers."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

PIECE_BYTES = 8 * 1024 * 1024
_MARK = codecs.BOM_UTF8


@dataclass(frozen=True)
class LineFormat:
    """Record format of a text file. ``separator`` ``None``: any line break. ``comment``: prefix of skipped lines."""

    encoding: str = "utf-8"
    separator: str | None = None
    comment: str | None = None
    header: bool = False
    blank: bytes = b" \t\r\n"
    """Characters of blank lines, which are skipped."""

    @classmethod
    def of(cls, format: str, options: Mapping[str, Any]) -> LineFormat:
        """Create from Spark's options for the format."""
        csv = format == "csv"
        return cls(
            encoding=str(options.get("encoding", "utf-8")),
            separator=options.get("lineSep"),
            comment=options.get("comment") if csv else None,
            blank=bytes(range(33)) if csv else b" \t\r\n",
            header=csv and str(options.get("header", "false")).lower() == "true",
        )

    def lines(self, pieces: Iterable[bytes]) -> Iterator[pa.Array]:
        """The records of one file, as arrays of text. Skips blank lines."""
        first = True
        for whole in self._whole_lines(self._utf8(pieces)):
            lines = whole.split(self.separator.encode()) if self.separator else whole.splitlines()
            lines = [line for line in lines if line.strip(self.blank)]
            if self.comment:
                mark = self.comment.encode()
                lines = [line for line in lines if not line.startswith(mark)]
            if self.header and first and lines:
                lines = lines[1:]
                first = False
            if lines:
                yield _text(lines)

    def _utf8(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        if codecs.lookup(self.encoding).name == "utf-8":
            for number, piece in enumerate(pieces):
                yield piece.removeprefix(_MARK) if number == 0 else piece
            return
        decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace")
        for piece in pieces:
            yield decoder.decode(piece).encode()
        yield decoder.decode(b"", final=True).encode()

    def _whole_lines(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Regroup the pieces so that each ends at a line end."""
        end = self.separator.encode() if self.separator else b"\n"
        begun: list[bytes] = []
        for piece in pieces:
            cut = piece.rfind(end) + len(end)
            if cut < len(end):
                begun.append(piece)
                continue
            yield b"".join([*begun, piece[:cut]])
            begun = [piece[cut:]]
        yield b"".join(begun)


def _text(lines: list[bytes]) -> pa.Array:
    try:
        return pa.array(lines, pa.string())
    except pa.ArrowInvalid:  # invalid UTF-8: readable in messages, as in Spark
        return pa.array([line.decode(errors="replace") for line in lines], pa.string())
