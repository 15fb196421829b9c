"""Rotation of a driver's log while the driver, and Spark's JVM below it, continue to write to it.

They hold the file open for appending, and outlive the control plane; so the file stays and its content moves: it is
copied to ``{log}.1`` and the file is truncated to 0 bytes, where the next line is then written. A line that is written
between the copy and the truncation is lost, as with logrotate's ``copytruncate``.

A driver that writes faster than the rotation copies loses the most: of a log that has grown far beyond its size only
the end is copied, and text that is written meanwhile only up to the maximum size. So no rotated file is larger than
twice the size, at any rate of writing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import IO, Final

from epochal.background.locks import lock_descriptor

_PIECE = 1 << 20
_TRIES = 3
_LINE_BYTES = 64 << 10
"""Maximum number of bytes that are skipped to start at the beginning of a line."""
_LEFT_OUT: Final = re.compile(rb"\[epochal: (\d{1,18}) bytes of this log are left out here: it grew too fast\]\n")


def rotated(path: Path, number: int) -> Path:
    """``{log}.1`` is the latest file that was rotated out of ``path``."""
    return path.with_name(f"{path.name}.{number}")


def rotate(path: Path, largest: int, files: int) -> bool:
    """Rotate the log if it is larger than ``largest`` bytes, and retain ``files`` rotated files of at most twice the
    size.

    Returns ``True`` if something was done; ``False`` also while another process rotates the log. Raises ``OSError``.
    """
    try:
        log = open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b")  # noqa: SIM115 closed below
    except FileNotFoundError:
        return False
    with log:
        if not lock_descriptor(log.fileno()):
            return False
        return _rotate(log, path, largest, files)


def _rotate(log: IO[bytes], path: Path, largest: int, files: int) -> bool:
    draft = path.with_name(f"{path.name}.part")
    size = os.fstat(log.fileno()).st_size
    if draft.exists():  # a control plane was killed in the middle
        if size < draft.stat().st_size:
            _keep(path, draft, files)
            return True
        draft.unlink()
    if size <= largest:
        return False
    try:
        with draft.open("wb") as copy:
            for _ in range(_TRIES):
                if _copy(log, os.fstat(log.fileno()).st_size, copy, largest):
                    break
            copy.flush()
            os.ftruncate(log.fileno(), 0)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    _keep(path, draft, files)
    return True


def _copy(log: IO[bytes], size: int, copy: IO[bytes], largest: int) -> bool:
    """Copy the whole log, which is ``size`` bytes long and grows; if it is too large, its end. Returns ``False`` if
    more was written meanwhile than the copy may hold, so that the copy no longer contains the end."""
    log.seek(0)
    copy.seek(0)
    copy.truncate()
    room = 2 * largest
    if size > largest + largest // 2:
        beginning = size - largest
        log.seek(beginning)
        beginning += len(log.readline(_LINE_BYTES))
        log.seek(beginning)
        copy.write(b"[epochal: %d bytes of this log are left out here: it grew too fast]\n" % beginning)
        room -= copy.tell()
    while room > 0 and (piece := log.read(min(_PIECE, room))):
        copy.write(piece)
        room -= len(piece)
    return room > 0


def position_in(earlier: Path, position: int) -> int:
    """The position in a rotated file that corresponds to ``position`` in the original log, or to the first copied byte
    after it."""
    with earlier.open("rb") as file:
        found = _LEFT_OUT.match(file.readline(_LINE_BYTES))
    if found is None:
        return position
    return 0 if position < int(found[1]) else position - int(found[1]) + found.end()


def _keep(path: Path, draft: Path, files: int) -> None:
    for number in range(files, 1, -1):
        earlier = rotated(path, number - 1)
        if earlier.exists():
            earlier.replace(rotated(path, number))
    draft.replace(rotated(path, 1))
