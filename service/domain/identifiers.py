"""Server-made identifiers: paths and primary keys are never made of what a caller sent."""

from __future__ import annotations

import secrets
import time
import uuid


def new_id() -> str:
    """Sorts by time of making, so that lists by id are stable and nearly chronological."""
    return uuid.UUID(int=(_milliseconds() << 80) | secrets.randbits(80)).hex


def new_branch_id(application: str) -> str:
    """``flights-3fa9c1d2``: for people, and part of paths, sinks' ids and markers; never used twice."""
    return f"{application}-{secrets.token_hex(4)}"


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000
