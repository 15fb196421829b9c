"""Signed cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochal.service.domain.pages import CursorSeal, PageRequest
from epochal.wire.projects import DEFAULT_PROJECT

if TYPE_CHECKING:
    from tests.service.conftest import Plane

SEAL = CursorSeal(b"no installation", ("a list",))
"""The seal of lists that a test reads without HTTP."""


def signed(plane: Plane, path: str, *values: Any, project: str = DEFAULT_PROJECT, query: tuple[str, ...] = ()) -> str:
    """A cursor with ``values``, signed with the key of the installation.

    ``path`` is the path that endpoints receive, with the full name of an application; ``query`` holds parameters such
    as ``key=JFK,LAX``."""
    seal = CursorSeal(plane.control.cursor_key.get(), (project, path, *query))
    return PageRequest(1, None, seal).following(*values)
