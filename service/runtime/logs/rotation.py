"""Rotation of a driver's log while the driver, and Spark's JVM below it, go on writing to it.

They hold the file open, for appending, and outlive the control plane; so the file stays and its content moves: it is
copied to ``{log}.1`` and the file is cut off at its beginning, where the next line then goes. A line that is written
between the two is lost, as with logrotate's ``copytruncate``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_PIECE = 1 << 20


def rotated(path: Path, number: int) -> Path:
    """``{log}.1`` is the latest of what was moved out of ``path``."""
    return path.with_name(f"{path.name}.{number}")


def rotate(path: Path, largest: int, files: int) -> bool:
    """Rotate the log when it is larger than ``largest`` bytes, and keep ``files`` beside it. Raises ``OSError``."""
    draft = path.with_name(f"{path.name}.part")
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if draft.exists():  # a control plane was killed in the middle
        if size < draft.stat().st_size:
            _keep(path, draft, files)
            return True
        draft.unlink()
    if size <= largest:
        return False
    try:
        with path.open("r+b") as log, draft.open("wb") as copy:
            shutil.copyfileobj(log, copy, _PIECE)
            copy.flush()
            os.ftruncate(log.fileno(), 0)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    _keep(path, draft, files)
    return True


def _keep(path: Path, draft: Path, files: int) -> None:
    for number in range(files, 1, -1):
        earlier = rotated(path, number - 1)
        if earlier.exists():
            earlier.replace(rotated(path, number))
    draft.replace(rotated(path, 1))
