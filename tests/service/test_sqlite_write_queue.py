"""Writers of one SQLite file: in the order in which they came, drivers and supervision before all others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from epochal.errors import CatalogUnavailable
from epochal.service.catalog import sqlite_write_queue as turns_module
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import AuditEntry
from epochal.service.catalog.sqlite_write_queue import WriteQueue, write_queue_of
from epochal.service.catalog.types import now
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.waiting import eventually


def test_a_heartbeat_does_not_wait_behind_a_flood_of_other_writes(tmp_path: Path) -> None:
    url = new_sqlite_catalog(tmp_path / "catalog.sqlite")
    common, drivers = Database(url), Database(url, urgent=True)
    turns = write_queue_of(tmp_path / "catalog.sqlite")

    def write(database: Database, name: str) -> None:
        with database.writing() as session:
            session.add(AuditEntry(at=now(), token=name, action="a", target="t", outcome=200, request="r"))

    with ThreadPoolExecutor() as pool, common.writing():
        for number in range(4):
            pool.submit(write, common, f"flood-{number}")
            eventually(lambda: turns.waiting == number + 1)  # noqa: B023 it is called at once
        pool.submit(write, drivers, "heartbeat")
        eventually(lambda: turns.waiting == 5)

    with common.reading() as session:
        written = [entry.token for entry in session.query(AuditEntry).order_by(AuditEntry.id)]
    assert written == ["heartbeat", "flood-0", "flood-1", "flood-2", "flood-3"]


def test_a_turn_that_does_not_come_in_time_is_given_up_and_the_next_one_comes(tmp_path: Path) -> None:
    turns = WriteQueue(tmp_path / "catalog.sqlite")
    done = threading.Event()

    def next_one() -> None:
        with turns.turn(urgent=False, seconds=60):
            done.set()

    with turns.turn(urgent=False, seconds=1):
        with pytest.raises(CatalogUnavailable), turns.turn(urgent=True, seconds=0.01):
            pass
        thread = threading.Thread(target=next_one)
        thread.start()
        eventually(lambda: turns.waiting == 1)
        assert not done.is_set()
    thread.join(60)

    assert done.is_set() and turns.waiting == 0


def test_a_writer_that_fails_passes_its_turn_on(tmp_path: Path) -> None:
    turns = WriteQueue(tmp_path / "catalog.sqlite")
    with pytest.raises(ZeroDivisionError), turns.turn(urgent=False, seconds=1):
        raise ZeroDivisionError
    with turns.turn(urgent=False, seconds=0.01):
        pass


def test_another_process_that_answers_drivers_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "STAND_BACK_SECONDS", 60)
    here, drivers = _two_processes(tmp_path)
    written: list[str] = []

    def submit() -> None:
        with here.turn(urgent=False, seconds=60):
            written.append("submission")

    with drivers.turn(urgent=True, seconds=1):
        thread = threading.Thread(target=submit)
        thread.start()
        eventually(lambda: here.taken)
        written.append("heartbeat")
    thread.join(60)

    assert written == ["heartbeat", "submission"]


def test_a_process_that_was_paused_while_it_answered_a_driver_stops_nobody(tmp_path: Path) -> None:
    here, drivers = _two_processes(tmp_path)
    with drivers.turn(urgent=True, seconds=1):
        with here.turn(urgent=False, seconds=1):
            pass
        with here.turn(urgent=True, seconds=1):
            pass


def _two_processes(folder: Path) -> tuple[WriteQueue, WriteQueue]:
    """What processes see of one another is a lock of the file's, which two objects in one process see alike."""
    return WriteQueue(folder / "catalog.sqlite"), WriteQueue(folder / "catalog.sqlite")
