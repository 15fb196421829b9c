"""Identifiers made by the server. Paths and primary keys never contain input of callers."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
import uuid

from epochal.wire.projects import LONGEST_FULL_NAME, full_name, local_name

_OF_AN_APPLICATION = re.compile(r"(?P<application>.+)-[0-9a-f]{8}")


def new_id() -> str:
    """Sortable by creation time, so that lists ordered by id are stable and nearly chronological."""
    return uuid.UUID(int=(_milliseconds() << 80) | secrets.randbits(80)).hex


def new_branch_id(application: str) -> str:
    """``flights-3fa9c1d2``: readable, used in paths and in the ids and markers of sinks, never reused."""
    return f"{application}-{secrets.token_hex(4)}"


def copied_branch_id(branch: str, project: str, *, control_plane: str, snapshot: str) -> str:
    """The id in ``project`` of a branch of another project, of which an application there uses a copy:
    ``pricing.orders-3fa9c1d2`` becomes ``ads.orders-`` and eight digits, deterministically.

    ``snapshot``: sha256 of the copied snapshot. Copies of two snapshots have different ids.
    """
    name, digest = copied_branch_name(branch, project), hashlib.sha256()
    digest.update("\n".join((control_plane, snapshot, branch, project)).encode())
    return f"{name}-{digest.hexdigest()[:8]}"


def copied_branch_name(branch: str, project: str) -> str:
    """Prefix of :func:`copied_branch_id`."""
    found = _OF_AN_APPLICATION.fullmatch(local_name(branch))
    application = local_name(branch) if found is None else found["application"]
    return full_name(project, application)[:LONGEST_FULL_NAME].rstrip("-")


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000
