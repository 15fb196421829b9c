"""Lines of the author's code that define the nodes of a graph, for display.

They are no part of a graph's identity: moved code is the same code, for comparisons, upgrades and fingerprints.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel, ConfigDict

from epochal.declarations.names import ARTIFACT_PACKAGE


class CodeLine(BaseModel):
    """A line of an artifact. ``file``: the path within a zip; ``None`` if the artifact is one Python file. ``line``
    counts from 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str | None = None
    line: int


def calling_line() -> CodeLine | None:
    """The line of the innermost caller in an artifact; ``None`` if no artifact is among the callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if isinstance(module, str) and module.startswith(ARTIFACT_PACKAGE):
            found = _line(module, frame.f_code.co_filename, frame.f_lineno)
            if found is not None:
                return found
        frame = frame.f_back
    return None


def line_of_class(cls: type[Any]) -> CodeLine | None:
    """The first line of a class of an artifact; ``None`` for other classes, or without source."""
    if not cls.__module__.startswith(ARTIFACT_PACKAGE):
        return None
    try:
        return _line(cls.__module__, inspect.getfile(cls), inspect.getsourcelines(cls)[1])
    except (OSError, TypeError):
        return None


def _line(module: str, path: str, line: int) -> CodeLine | None:
    """``None`` if ``path`` is not a file of the artifact, as for code that was compiled from a text."""
    package = module.partition(".")[0]
    folders = list(getattr(sys.modules.get(package), "__path__", ()))
    if not folders:
        entry = getattr(sys.modules.get(f"{package}.pipeline"), "__file__", None)
        return CodeLine(line=line) if path == entry else None
    try:
        return CodeLine(file=Path(path).relative_to(folders[0]).as_posix(), line=line)
    except ValueError:
        return None
