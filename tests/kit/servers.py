"""Servers for fixtures: they run during the lifetime of the fixture, or the test is skipped with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from epochal.testing.servers import ServerUnavailable

Server = TypeVar("Server")


def or_skipped(server: AbstractContextManager[Server]) -> Iterator[Server]:
    """Use as ``yield from or_skipped(kafka())``. An unavailable server skips the test with the reason."""
    try:
        running = server.__enter__()
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    yield running
    server.__exit__(None, None, None)
