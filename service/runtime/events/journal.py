"""Events that an earlier version kept in a journal of its data folder (LMDB): brought into the catalog once, so that a
listener goes on behind the event that it saw last.

The journal numbered the events of all applications together. Its events keep their numbers, and every application's
next one gets a higher number than any of the journal's. Where another data folder's journal was brought in before, the
same numbers mean different events: then all up to this journal's newest are taken to have expired, and listeners that
come back with such a number are told to look anew.
"""

from __future__ import annotations

import json
import logging
import shutil
import struct
from pathlib import Path

import lmdb

from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import ALL, EventEntry, EventRepository

log = logging.getLogger("epochal.events")

_ID = struct.Struct(">Q")


def bring_in_journal(folder: Path, database: Database) -> None:
    """The journal in ``folder``, which is removed then; nothing happens when there is none. Idempotent."""
    if not (folder / "data.mdb").exists():
        return
    entries = _entries(folder)
    if entries:
        with database.writing() as session:
            repository = EventRepository(session)
            applications = {row.name for row in ApplicationRepository(session).all()}
            first, last = entries[0].number, entries[-1].number
            if repository.is_empty():
                repository.bring_in(entries, applications, first, last)
            elif not repository.has(entries[-1]):
                repository.go_on_above(last, last, {*applications, *(entry.application for entry in entries), ALL})
        log.info("brought %d events of the journal %s into the catalog", len(entries), folder)
    shutil.rmtree(folder)


def _entries(folder: Path) -> list[EventEntry]:
    """Oldest first; none when it cannot be read, as events tell only what the catalog holds anyway."""
    try:
        environment = lmdb.open(str(folder), readonly=True, lock=False)
    except lmdb.Error as error:
        log.warning("the journal of events in %s cannot be read and is removed: %s", folder, error)
        return []
    found = []
    try:
        with environment.begin() as transaction:
            for key, value in transaction.cursor():
                (number,) = _ID.unpack(key)
                application, kind, data = bytes(value).split(b"\n", 2)
                json.loads(data)
                found.append(EventEntry(number, application.decode(), number, kind.decode(), data))
    except (lmdb.Error, struct.error, ValueError) as error:
        log.warning("the journal of events in %s is broken after %d events: %s", folder, len(found), error)
    finally:
        environment.close()
    return found
