"""Log files of drivers: their paths, their last lines, and following appended text across rotations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from epochal.service.runtime.logs.rotation import position_in, rotated

_BLOCK_BYTES = 64 * 1024


def log_path(logs: Path, application: str, execution: str, attempt: int) -> Path:
    """The log of one attempt below the folder ``logs``. The control plane has created or validated all parts of the
    path."""
    return logs / application / f"{execution}-{attempt}.log"


def tail(path: Path, lines: int) -> bytes:
    """The last ``lines`` lines; empty if the log does not exist yet."""
    return tail_and_follow(path, lines)[0]


def tail_and_follow(path: Path, lines: int) -> tuple[bytes, LogFollower]:
    """The last ``lines`` lines, and a follower that continues after them.

    Reads blocks from the end: the cost depends on the number of lines, not on the size of the log.
    """
    follower = LogFollower(path)
    text, follower.position = _end(path, lines)
    number = 1
    while text.count(b"\n") < lines and rotated(path, number).exists():
        text = _end(rotated(path, number), lines)[0] + text
        number += 1
    return last_lines_of(text, lines), follower


def last_lines_of(text: bytes, lines: int) -> bytes:
    """The last ``lines`` lines of a text."""
    return b"".join(text.splitlines(keepends=True)[-lines:]) if lines > 0 else b""


def parts_of(path: Path) -> list[Path]:
    """The existing files of a log, the latest first."""
    found, number = [path] if path.exists() else [], 1
    while rotated(path, number).exists():
        found.append(rotated(path, number))
        number += 1
    return found


def read_end(path: Path, most: int) -> bytes:
    """At most ``most`` last bytes of a log, including rotated files; a longer log is cut at the beginning of a line."""
    text, cut = b"", False
    for part in parts_of(path):
        with part.open("rb") as log:
            left = most - len(text)
            size = log.seek(0, os.SEEK_END)
            log.seek(max(size - left, 0))
            text, cut = log.read(left) + text, size > left
        if cut:
            break
    return text[text.find(b"\n") + 1 :] if cut and b"\n" in text else text


def last_lines(path: Path, lines: int) -> str:
    """The last lines as text, for the reason of a failure."""
    return tail(path, lines).decode(errors="replace").rstrip()


class LogFollower:
    """Reads text that is appended after ``position``, including text that was rotated out before it was read.

    If a log is rotated twice between two calls, the text in between is skipped.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self._path = path
        self._rotated = _identity(rotated(path, 1))
        self.position = position

    def appended(self) -> Iterator[bytes]:
        """The text that has been appended so far, in blocks."""
        earlier = rotated(self._path, 1)
        identity = _identity(earlier)
        if identity != self._rotated:
            if identity is None:
                return  # A rotation is in progress.
            with suppress(FileNotFoundError):
                yield from _blocks(earlier, position_in(earlier, self.position))
            self._rotated, self.position = identity, 0
        for block in _blocks(self._path, self.position):
            self.position += len(block)
            yield block


def _end(path: Path, lines: int) -> tuple[bytes, int]:
    """A block at the end that contains the last ``lines`` lines, and the position of its end."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            start, text = end, b""
            # One line end more than requested: the one that precedes the first line.
            while start > 0 and text.count(b"\n") <= lines:
                start = max(0, start - _BLOCK_BYTES)
                log.seek(start)
                text = log.read(end - start)
    except FileNotFoundError:
        return b"", 0
    return text, end


def _blocks(path: Path, position: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as log:
            log.seek(position)
            while block := log.read(_BLOCK_BYTES):
                yield block
    except FileNotFoundError:
        return


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Differs after each rotation. The inode number alone does not suffice: the number of a deleted file may be
    reused."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
