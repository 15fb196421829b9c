"""Log files: where they are, their last lines, and what is appended to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 64 * 1024


def log_path(logs: Path, application: str, execution: str, attempt: int) -> Path:
    """The log of one attempt below the folder ``logs``. All parts are names that the control plane made or checked."""
    return logs / application / f"{execution}-{attempt}.log"


def tail(path: Path, lines: int) -> tuple[bytes, int]:
    """The last ``lines`` lines, and the position after them; nothing when there is no log yet.

    Reads blocks from the end: the cost depends on what is asked for, not on the size of the log.
    """
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            start, text = end, b""
            # One line end more than asked for: the one before the first line wanted.
            while start > 0 and text.count(b"\n") <= lines:
                start = max(0, start - _BLOCK_BYTES)
                log.seek(start)
                text = log.read(end - start)
    except FileNotFoundError:
        return b"", 0
    kept = text.splitlines(keepends=True)[-lines:] if lines > 0 else []
    return b"".join(kept), end


def last_lines(path: Path, lines: int) -> str:
    """The last lines as text, for a failure's reason."""
    return tail(path, lines)[0].decode(errors="replace").rstrip()


def appended(path: Path, position: int) -> Iterator[bytes]:
    """What stands after ``position`` now, in blocks."""
    try:
        with path.open("rb") as log:
            log.seek(position)
            while block := log.read(_BLOCK_BYTES):
                yield block
    except FileNotFoundError:
        return
