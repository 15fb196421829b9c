"""The journal of events: numbered, in order, on disk, the oldest forgotten in the end.

An LMDB environment: several control planes on one data directory write to and read from the same journal.
"""

from __future__ import annotations

import json
import logging
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lmdb

from epochal.service.domain.ports import ControlEvent

log = logging.getLogger("epochal.events")

KEPT = 20_000
_MAP_BYTES = 1 << 30
_ID = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event as it goes to clients. ``data`` is JSON, in one line.

    What names it among all events is (application, number). That numbers rise over all applications is this journal's
    way of keeping them: a client may count on it within an application only.
    """

    number: int
    kind: str
    application: str
    """Empty where none is concerned."""
    data: bytes


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a listener takes; ``None``: all."""

    applications: frozenset[str] | None = None
    kinds: frozenset[str] | None = None

    def takes(self, application: str, kind: str) -> bool:
        return (self.applications is None or application in self.applications) and (
            self.kinds is None or kind in self.kinds
        )


class Journal:
    """Safe to use from several threads."""

    def __init__(self, directory: Path, kept: int = KEPT) -> None:
        self._kept = kept
        self._environment = _open(directory)

    def append(self, events: Sequence[ControlEvent]) -> None:
        """Number the events and keep them."""
        with self._environment.begin(write=True) as transaction:
            cursor = transaction.cursor()
            last = _id(cursor.key()) if cursor.last() else 0
            for number, event in enumerate(events, last + 1):
                transaction.put(_ID.pack(number), _encode(event), append=True)
            newest = last + len(events)
            while cursor.first() and _id(cursor.key()) <= newest - self._kept:
                cursor.delete()

    def last(self) -> int:
        """The number of the newest event; 0 when there is none."""
        with self._environment.begin() as transaction:
            cursor = transaction.cursor()
            return _id(cursor.key()) if cursor.last() else 0

    def after(self, position: int, chosen: EventFilter, limit: int = 500) -> tuple[list[JournalEntry], int]:
        """Events after ``position``, oldest first, and the position reached."""
        found: list[JournalEntry] = []
        with self._environment.begin() as transaction:
            cursor = transaction.cursor()
            present = cursor.set_range(_ID.pack(position + 1))
            while present and len(found) < limit:
                position = _id(cursor.key())
                name, kind, data = bytes(cursor.value()).split(b"\n", 2)
                if chosen.takes(application := name.decode(), kind_name := kind.decode()):
                    found.append(JournalEntry(position, kind_name, application, data))
                present = cursor.next()
        return found, position

    def close(self) -> None:
        self._environment.close()


def _open(directory: Path) -> lmdb.Environment:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return _environment(directory)
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        log.warning("the journal of events in %s cannot be read (%s); beginning a new one", directory, error)
        shutil.rmtree(directory)
        directory.mkdir(parents=True)
        return _environment(directory)


def _environment(directory: Path) -> lmdb.Environment:
    # No sync: events tell what the catalog holds anyway, and a journal that a power failure broke is begun anew.
    return lmdb.open(str(directory), map_size=_MAP_BYTES, sync=False, max_readers=512)


def _id(key: bytes) -> int:
    number: int = _ID.unpack(key)[0]
    return number


def _encode(event: ControlEvent) -> bytes:
    data = {"application": event.application, "at": event.at.isoformat()} | event.data
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return f"{event.application or ''}\n{event.kind}\n{text}".encode()
