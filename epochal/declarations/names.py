"""Names that people give: pipelines, sources, tables, operators, states and sinks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from epochal.errors import PipelineError

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


MOST_LISTED = 8
"""So many names an error lists; of more, only a near one."""


def check_name(what: str, name: object) -> str:
    """``name``, when it can be one. Raises ``PipelineError`` that says what a name looks like."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise PipelineError(
        f"{name!r} cannot be the name of {what}: a name starts with a small letter and goes on with small letters, "
        "digits, '-' and '_', at most 63 in all."
    )


def name_of_class(name: str) -> str:
    """``LateStreaks`` -> ``late_streaks``: how an operator is called when its author does not say."""
    return _WORD_START.sub("_", name.strip("_")).lower()


def closest(name: str, known: Iterable[str]) -> str:
    """A hint to append to an error: `` Did you mean 'header'?``, or nothing when no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def alternatives(name: str, known: Iterable[str]) -> str:
    """What to append to an error about a name that is not there: the near one, or all if they are few."""
    names = sorted(known)
    near = closest(name, names)
    if near or len(names) > MOST_LISTED:
        return near
    return f" There are: {listed(names)}." if names else " There are none yet."


def listed(names: Iterable[str]) -> str:
    """``a, b, c`` for a message, or ``none``."""
    return ", ".join(names) or "none"


def require_columns(required: tuple[str, ...], there: list[str], where: str = "the input") -> None:
    """Raises ``PipelineError`` naming the first column that is missing, and what there is."""
    known = {name.casefold() for name in there}
    for name in required:
        if name.casefold() not in known:
            raise PipelineError(
                f"there is no column {name!r} in {where}; there are {listed(there)}.{closest(name, there)}"
            )
