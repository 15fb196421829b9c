"""The format of what lies in a store or in a bundle, as a number; what each number has is said in docs/state.md.

Manifests, deltas, bases and bundles name their format themselves. Every format that there has been is read; what is
written has the newest. Nothing is converted: a chain may mix them. What a later version of Epochal wrote is refused.
"""

from __future__ import annotations

import json
from typing import Any

from epochal.errors import NewerFormat

FORMAT = 2
OLDEST_FORMAT = 1
NAME = "format"


def newer_format(what: str, format: int) -> NewerFormat:
    """The error for ``what`` ("manifest main/manifests/1.json"), which has a format that is not known here."""
    known = " and ".join(str(number) for number in range(OLDEST_FORMAT, FORMAT + 1))
    return NewerFormat(f"{what} has format {format}; this version of Epochal reads {known}: upgrade Epochal.")


def check_format(what: str, about: Any) -> None:
    """``about``: the JSON object with which a file describes itself. Raises ``NewerFormat``; nothing where it says no
    number."""
    format = about.get(NAME) if isinstance(about, dict) else None
    if isinstance(format, int) and format > FORMAT:
        raise newer_format(what, format)


def check_format_of(what: str, document: bytes) -> None:
    """As :func:`check_format`, of a JSON document that could not be read as one of a known format."""
    try:
        about = json.loads(document)
    except ValueError:
        return
    check_format(what, about)
