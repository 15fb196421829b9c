"""The write queue of a SQLite file: first come, first served, with drivers and supervision ahead of all others."""

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


def test_heartbeat_overtakes_other_writes(tmp_path: Path) -> None:
    url = new_sqlite_catalog(tmp_path / "catalog.sqlite")
    common, drivers = Database(url), Database(url, urgent=True)
    queue = write_queue_of(tmp_path / "catalog.sqlite")

    def write(database: Database, name: str) -> None:
        with database.writing() as session:
            session.add(AuditEntry(at=now(), token=name, action="a", target="t", outcome=200, request="r"))

    with ThreadPoolExecutor() as pool, common.writing():
        for number in range(4):
            pool.submit(write, common, f"flood-{number}")
            eventually(lambda: queue.waiting == number + 1)  # noqa: B023 called in this iteration
        pool.submit(write, drivers, "heartbeat")
        eventually(lambda: queue.waiting == 5)

    with common.reading() as session:
        written = [entry.token for entry in session.query(AuditEntry).order_by(AuditEntry.id)]
    assert written == ["heartbeat", "flood-0", "flood-1", "flood-2", "flood-3"]


def test_writer_that_times_out_does_not_block_the_next(tmp_path: Path) -> None:
    queue = WriteQueue(tmp_path / "catalog.sqlite")
    done = threading.Event()

    def next_one() -> None:
        with queue.turn(urgent=False, seconds=60):
            done.set()

    with queue.turn(urgent=False, seconds=1):
        with pytest.raises(CatalogUnavailable), queue.turn(urgent=True, seconds=0.01):
            pass
        thread = threading.Thread(target=next_one)
        thread.start()
        eventually(lambda: queue.waiting == 1)
        assert not done.is_set()
    thread.join(60)

    assert done.is_set() and queue.waiting == 0


def test_failed_writer_releases_the_queue(tmp_path: Path) -> None:
    queue = WriteQueue(tmp_path / "catalog.sqlite")
    with pytest.raises(ZeroDivisionError), queue.turn(urgent=False, seconds=1):
        raise ZeroDivisionError
    with queue.turn(urgent=False, seconds=0.01):
        pass


def test_process_that_serves_drivers_writes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "STAND_BACK_SECONDS", 60)
    submitting, drivers = _two_processes(tmp_path)
    written: list[str] = []

    def submit() -> None:
        with submitting.turn(urgent=False, seconds=60):
            written.append("submission")

    with drivers.turn(urgent=True, seconds=1):
        thread = threading.Thread(target=submit)
        thread.start()
        eventually(lambda: submitting.taken)
        written.append("heartbeat")
    thread.join(60)

    assert written == ["heartbeat", "submission"]


def test_paused_process_that_serves_a_driver_blocks_no_other(tmp_path: Path) -> None:
    submitting, drivers = _two_processes(tmp_path)
    with drivers.turn(urgent=True, seconds=1):
        with submitting.turn(urgent=False, seconds=1):
            pass
        with submitting.turn(urgent=True, seconds=1):
            pass


def _two_processes(folder: Path) -> tuple[WriteQueue, WriteQueue]:
    """Processes see each other through a lock of the file, which works alike for two objects in one process."""
    return WriteQueue(folder / "catalog.sqlite"), WriteQueue(folder / "catalog.sqlite")
