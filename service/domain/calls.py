"""Calls of entries, as the catalog knows them. What answers drivers loads no more than this of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TakenCall:
    """A call in the inbox. ``new``: it came just now."""

    number: int
    entry: str
    new: bool
