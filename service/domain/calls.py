"""Calls of entries, as the catalog knows them. What answers drivers loads no more than this of them."""

from __future__ import annotations

from typing import NamedTuple


class TakenCall(NamedTuple):
    """A call in the inbox. ``new``: it came just now."""

    number: int
    entry: str
    new: bool
