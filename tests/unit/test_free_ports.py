"""Ports for servers of tests: distinct, not taken, and not among those that connections take."""

from __future__ import annotations

import socket

import pytest

from epochal.testing.servers import process
from epochal.testing.servers.process import LOOPBACK, PORTS, ServerUnavailable, free_port


def test_ports_are_distinct_and_not_those_of_connections() -> None:
    found = [free_port() for _ in range(200)]
    assert len(set(found)) == len(found)
    assert set(found) <= set(PORTS)
    with socket.socket() as connecting:
        connecting.bind((LOOPBACK, 0))
        assert connecting.getsockname()[1] not in PORTS


def test_a_port_in_use_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.socket() as taken:
        taken.bind((LOOPBACK, free))
        taken.listen()
        monkeypatch.setattr(process, "_returned", set())
        monkeypatch.setattr(process, "PORTS", range(free, free + 1))
        with pytest.raises(ServerUnavailable, match="Stop servers"):
            free_port()
