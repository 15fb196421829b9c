"""Servers for fixtures: running for as long as the fixture lives, or the reason why the test is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from epochal.testing.servers import ServerUnavailable

Server = TypeVar("Server")


def or_skipped(server: AbstractContextManager[Server]) -> Iterator[Server]:
    """``yield from or_skipped(kafka())``: the test is skipped, with the reason, where the server cannot be had."""
    try:
        running = server.__enter__()
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    yield running
    server.__exit__(None, None, None)
