"""Distribution of changes within a process: to streams of events, and to components that wait for a change.

The catalog is authoritative and is read each second. A hint, from a transaction of this process or from another
process, triggers the read earlier.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from epochal.background.service import BackgroundService
from epochal.errors import EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import ALL, EventEntry, EventFilter, EventRepository
from epochal.service.domain.events import ControlEvent, Topics, topics_of
from epochal.service.runtime.events.async_notifier import AsyncNotifier
from epochal.service.runtime.events.hints import Hints
from epochal.service.runtime.events.loads import LoadFeed

log = logging.getLogger("epochal.events")

Listener = Callable[[Topics], None]

POLL_SECONDS = 1.0
"""Interval between reads of the catalog without a hint."""
_AT_ONCE = 500
_REMEMBERED = 2_000


@dataclass
class Cursor:
    """Position of a stream: all events up to ``position`` have been delivered. ``application`` and ``number``: the
    application of a stream of one application, and the number of its latest event that was passed. ``load``: position
    of the latest load that was delivered."""

    position: int
    application: str | None = None
    number: int = 0
    load: int = 0


@dataclass(frozen=True)
class _Tail:
    """The newest events of all applications: after position ``start``, up to ``end``."""

    start: int
    end: int
    entries: tuple[EventEntry, ...] = ()

    def with_more(self, entries: Sequence[EventEntry], end: int) -> _Tail:
        kept = (*self.entries, *entries)
        gone = kept[:-_REMEMBERED]
        return _Tail(gone[-1].position if gone else self.start, end, kept[len(gone) :])

    def after(self, position: int) -> tuple[EventEntry, ...]:
        return self.entries[bisect_right(self.entries, position, key=lambda entry: entry.position) :]


class EventHub:
    """A component. One thread reads new events from the catalog for all streams; a stream that is further behind reads
    the catalog itself."""

    def __init__(self, database: Database, hints: Hints) -> None:
        self._database = database
        self._hints = hints
        self._listeners: list[Listener] = []
        self._listeners_to_others: list[Listener] = []
        self._notifier = AsyncNotifier()
        self._loads = LoadFeed(database)
        self._streams = 0
        self._tail: _Tail | None = None
        self._closed = False
        self._service = BackgroundService("events", self._step, POLL_SECONDS)

    def open(self) -> None:
        self._hints.open(self._heard)
        self._service.start()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._hints.close()
        self._notifier.ring()
        self._service.stop()

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with the topics of each change, from any thread; it must return quickly. Calls may be
        duplicated or lost: they only trigger earlier what is done each second anyway."""
        self._listeners.append(listener)

    def listen_to_others(self, listener: Listener) -> None:
        """Like :meth:`listen`, for changes made by other processes."""
        self._listeners_to_others.append(listener)

    def committed(self, events: Sequence[ControlEvent]) -> None:
        """Notify listeners that a transaction of this process was committed; for ``Database.listen``."""
        self.tell(topics_of(events))

    def tell(self, topics: Topics) -> None:
        """Notify all processes of a change that is not an event."""
        self._call(self._listeners, topics)
        self._hints.send(topics)

    def _heard(self, topics: Topics) -> None:
        self._call([*self._listeners, *self._listeners_to_others], topics)

    def _call(self, listeners: Sequence[Listener], topics: Topics) -> None:
        self._service.wake()
        for listener in listeners:
            try:
                listener(topics)
            except Exception:
                log.exception("a listener failed at %s", ", ".join(topics))

    def begin(self, application: str, after: int | None) -> Cursor:
        """The cursor of a stream of one application that continues after number ``after``; ``None``: from now on.

        Raises ``EventsExpired`` if events after that number have expired.
        """
        self._assign_positions()
        with self._database.reading() as session:
            repository = EventRepository(session)
            if after is None:
                return Cursor(repository.last(ALL), application, repository.last(application))
            return Cursor(repository.position(application, after), application, after)

    def begin_all(self, after: tuple[str, int] | None) -> Cursor:
        """Like :meth:`begin`, for all applications; ``after``: application and number of the latest event that was
        received."""
        self._assign_positions()
        with self._database.reading() as session:
            repository = EventRepository(session)
            return Cursor(repository.last(ALL) if after is None else repository.position_of_all(*after))

    async def stream(
        self, chosen: EventFilter, cursor: Cursor, heartbeat_seconds: float
    ) -> AsyncGenerator[EventEntry | None, None]:
        """Events after ``cursor``, as they are committed. Ends when the hub closes, and when the listener is so slow
        that events have expired before they were delivered; it gets the error when it reconnects. Loads, if selected,
        begin with the latest one of each application.

        Yields ``None`` if no event has occurred for ``heartbeat_seconds``.
        """
        self._streams += 1
        try:
            with self._notifier.listener() as listener, self._loads.following(chosen):
                self._service.wake()
                silent = 0.0
                while not self._closed:
                    listener.forget()
                    entries = await self._after(cursor, chosen)
                    if entries is None:
                        return
                    loads = self._loads.after(cursor.load, chosen)
                    if loads:
                        cursor.load = loads[-1].position
                    for entry in (*entries, *loads):
                        yield entry
                    if entries or loads:
                        silent = 0.0
                        continue
                    if silent >= heartbeat_seconds:
                        silent = 0.0
                        yield None
                    pause = min(POLL_SECONDS, heartbeat_seconds)
                    await listener.wait(pause)
                    silent += pause
        finally:
            self._streams -= 1

    async def _after(self, cursor: Cursor, chosen: EventFilter) -> Sequence[EventEntry] | None:
        """Move the cursor. ``None``: events after the cursor have expired."""
        tail = self._tail
        if tail is not None and tail.start <= cursor.position:
            entries = tail.after(cursor.position)
            cursor.position = max(cursor.position, tail.end)
            numbers = [entry.number for entry in entries if entry.application == cursor.application]
            cursor.number = max(cursor.number, *numbers[-1:], 0)
            return [entry for entry in entries if chosen.takes(entry)]
        try:
            return await asyncio.to_thread(self._read, cursor, chosen)
        except EpochalError as error:
            log.warning("a stream of events waits: %s", error)
            return ()

    def _read(self, cursor: Cursor, chosen: EventFilter) -> Sequence[EventEntry] | None:
        with self._database.reading() as session:
            repository = EventRepository(session)
            entries, position = repository.after(cursor.position, chosen, _AT_ONCE)
            # Read last: detects events that expired before they were read.
            if cursor.application is None:
                gone = repository.expired(ALL) > cursor.position
            else:
                gone = repository.expired(cursor.application) > cursor.number
                cursor.number = max(cursor.number, repository.number_at(cursor.application, position))
            cursor.position = position
            return None if gone else entries

    def _step(self) -> None:
        if self._streams == 0:
            self._tail = None
        else:
            self._look()
        if self._loads.look():
            self._notifier.ring()

    def _look(self) -> None:
        self._assign_positions()
        tail, more = self._tail, True
        while more:
            with self._database.reading() as session:
                repository = EventRepository(session)
                if tail is None:
                    last = repository.last(ALL)
                    tail, more = _Tail(last, last), False
                else:
                    entries, end = repository.after(tail.end, EventFilter(), _AT_ONCE)
                    tail, more = tail.with_more(entries, end), len(entries) == _AT_ONCE
        if tail != self._tail:
            self._tail = tail
            self._notifier.ring()

    def _assign_positions(self) -> None:
        with self._database.reading() as session:
            more = EventRepository(session).lacks_positions()
        while more:
            with self._database.writing() as session:
                more = EventRepository(session).assign_positions() > 0
