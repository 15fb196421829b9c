"""Names of pipelines, sources, tables, operators, states and sinks; hints for unknown names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from epochal.errors import PipelineError

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


ARTIFACT_PACKAGE = "epochal_artifact_"
"""The prefix of the package name of a loaded artifact. The rest differs between versions."""
MOST_LISTED = 8
"""Maximum number of names that an error lists. If there are more, it only suggests a similar name."""


def check_name(what: str, name: object) -> str:
    """Return ``name`` if it is valid. Raises ``PipelineError`` with the form of a name."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise PipelineError(
        f"{name!r} cannot be the name of {what}: a name starts with a lowercase letter, followed by lowercase letters, "
        "digits, '-' and '_', at most 63 characters."
    )


def name_of_class(name: str) -> str:
    """``LateStreaks`` -> ``late_streaks``: the default name of an operator."""
    return _WORD_START.sub("_", name.strip("_")).lower()


def closest(name: str, known: Iterable[str]) -> str:
    """A hint for an error: `` Did you mean 'header'?``, or an empty string if no known name is similar."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def alternatives(name: str, known: Iterable[str]) -> str:
    """A hint for an error about an unknown name: the most similar name, or all names if they are few."""
    names = sorted(known)
    near = closest(name, names)
    if near or len(names) > MOST_LISTED:
        return near
    return f" Existing names: {listed(names)}." if names else " None exist yet."


def listed(names: Iterable[str]) -> str:
    """``a, b, c`` for a message, or ``none``."""
    return ", ".join(names) or "none"


def require_columns(required: tuple[str, ...], there: list[str], where: str = "the input") -> None:
    """Raises ``PipelineError`` that names the first missing column, and the existing columns."""
    known = {name.casefold() for name in there}
    for name in required:
        if name.casefold() not in known:
            raise PipelineError(
                f"there is no column {name!r} in {where}; it has {listed(there)}.{closest(name, there)}"
            )
