"""Hints between processes on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from epochal.service.catalog.database import Database
from epochal.service.catalog.engines import APPLICATION_NAME
from epochal.service.domain.events import COMMITTED, EVERYTHING, OPERATION, Topics
from epochal.service.runtime.events import hints as hints_module
from epochal.service.runtime.events.hints import Hints, LocalHints, PostgresqlHints, hints_of

PATIENCE = 20.0


@contextmanager
def listening(hints: Hints) -> Iterator[queue.Queue[Topics]]:
    received: queue.Queue[Topics] = queue.Queue()
    hints.open(received.put)
    try:
        yield received
    finally:
        hints.close()


@pytest.mark.parametrize("depth", [0, 12], ids=["short path", "long path"])
def test_processes_on_one_data_folder_receive_hints_from_each_other(tmp_path: Path, depth: int) -> None:
    data = tmp_path.joinpath(*["a-long-name"] * depth)
    first, second, third = (hints_of(f"sqlite:///{data}/catalog.sqlite", data) for _ in range(3))
    assert isinstance(first, LocalHints)
    with listening(first) as to_first, listening(second) as to_second:
        with listening(third) as to_third:
            first.send(frozenset({COMMITTED, OPERATION}))
            assert to_second.get(timeout=PATIENCE) == to_third.get(timeout=PATIENCE) == {COMMITTED, OPERATION}
        second.send(frozenset({COMMITTED}))
        assert to_first.get(timeout=PATIENCE) == {COMMITTED}
        assert to_second.empty()  # a process does not receive its own hints
    assert os.listdir(data / "hints") == []


def test_the_socket_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "hints"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(folder / "1-killed"))
    hints, other = LocalHints(folder), LocalHints(folder)
    with listening(hints), listening(other) as received:
        hints.send(frozenset({COMMITTED}))
        assert received.get(timeout=PATIENCE) == {COMMITTED}
        assert not (folder / "1-killed").exists()


@pytest.mark.server
def test_control_planes_on_one_postgresql_receive_hints_from_each_other(
    postgresql_catalog_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints_module, "RECONNECT_SECONDS", 0.05)
    first, second = (hints_of(postgresql_catalog_url, tmp_path) for _ in range(2))
    assert isinstance(first, PostgresqlHints)
    database = Database(postgresql_catalog_url)
    with ExitStack() as stack:
        stack.callback(database.close)
        to_first, to_second = (stack.enter_context(listening(hints)) for hints in (first, second))
        # After connecting, a process re-reads everything.
        assert to_first.get(timeout=PATIENCE) == to_second.get(timeout=PATIENCE) == EVERYTHING
        first.send(frozenset({COMMITTED}))
        assert to_second.get(timeout=PATIENCE) == {COMMITTED}
        with database.writing() as session:
            session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = :name"
                ),
                {"name": APPLICATION_NAME},
            )
        assert to_first.get(timeout=PATIENCE) == to_second.get(timeout=PATIENCE) == EVERYTHING
        second.send(frozenset({OPERATION}))
        assert to_first.get(timeout=PATIENCE) == {OPERATION}
        assert to_first.empty()
