"""Cursors as the installation of a test signs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochal.service.domain.pages import CursorSeal, PageRequest
from epochal.wire.projects import DEFAULT_PROJECT

if TYPE_CHECKING:
    from tests.service.conftest import Plane

SEAL = CursorSeal(b"of no installation", ("a list",))
"""For lists that a test reads without HTTP."""


def signed(plane: Plane, path: str, *values: Any, project: str = DEFAULT_PROJECT, query: tuple[str, ...] = ()) -> str:
    """A cursor with these values that the installation itself has signed. ``path``: as endpoints see it, with the full
    name of an application; ``query``: ``key=JFK,LAX`` and the like."""
    seal = CursorSeal(plane.control.cursor_key.get(), (project, path, *query))
    return PageRequest(1, None, seal).following(*values)
