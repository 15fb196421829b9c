"""What changes, to whoever in this process waits for it: streams of events, and parts that only want to be woken.

The catalog is what counts, and is asked each second. A hint, of this process's transactions or of another process's,
makes that sooner.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from epochal.background.service import BackgroundService
from epochal.errors import EpochalError
from epochal.service.catalog.database import Database
from epochal.service.catalog.events import ALL, EventEntry, EventFilter, EventRepository
from epochal.service.domain.events import ControlEvent, Topics, topics_of
from epochal.service.runtime.events.async_notifier import AsyncNotifier
from epochal.service.runtime.events.hints import Hints

log = logging.getLogger("epochal.events")

Listener = Callable[[Topics], None]

POLL_SECONDS = 1.0
"""How often the catalog is asked for events without a hint."""
_AT_ONCE = 500
_REMEMBERED = 2_000


@dataclass
class Cursor:
    """How far a stream has come: no event up to ``position`` is left for it. ``application``: where it is of one, and
    the last number of this that it has passed."""

    position: int
    application: str | None = None
    number: int = 0


@dataclass(frozen=True)
class _Tail:
    """The newest events, of all applications: after position ``start``, up to ``end``."""

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
    """A component. However many streams there are, one thread reads what is new from the catalog for all of them; a
    stream that is further behind reads for itself."""

    def __init__(self, database: Database, hints: Hints) -> None:
        self._database = database
        self._hints = hints
        self._listeners: list[Listener] = []
        self._listeners_to_others: list[Listener] = []
        self._notifier = AsyncNotifier()
        self._streams = 0
        self._tail: _Tail | None = None
        self._closed = False
        self._service = BackgroundService("events", self._step, POLL_SECONDS)

    def open(self) -> None:
        self._hints.open(self._heard)
        self._service.start()

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        self._hints.close()
        self._notifier.ring()
        self._service.stop()

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with what has changed, from any thread: it must be quick. It may be called too often, and
        too rarely: it makes sooner what is done each second anyway."""
        self._listeners.append(listener)

    def listen_to_others(self, listener: Listener) -> None:
        """As :meth:`listen`, but for what other processes have changed."""
        self._listeners_to_others.append(listener)

    def committed(self, events: Sequence[ControlEvent]) -> None:
        """A transaction of this process was committed; for ``Database.listen``."""
        self.tell(topics_of(events))

    def tell(self, topics: Topics) -> None:
        """Something has changed that is no event; to all processes."""
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
        """Where a stream of one application goes on that has seen number ``after``; ``None``: from now on.

        Raises ``EventsExpired`` when it can not.
        """
        self._assign_positions()
        with self._database.reading() as session:
            repository = EventRepository(session)
            if after is None:
                return Cursor(repository.last(ALL), application, repository.last(application))
            return Cursor(repository.position(application, after), application, after)

    def begin_all(self, after: tuple[str, int] | None) -> Cursor:
        """As :meth:`begin`, of all applications; ``after``: the application and number of the event seen last."""
        self._assign_positions()
        with self._database.reading() as session:
            repository = EventRepository(session)
            return Cursor(repository.last(ALL) if after is None else repository.position_of_all(*after))

    async def stream(
        self, chosen: EventFilter, cursor: Cursor, heartbeat_seconds: float
    ) -> AsyncIterator[EventEntry | None]:
        """Events after ``cursor``, as they come; ends when the hub closes, and when the listener is so slow that events
        have expired before it took them: it is told so when it comes back.

        ``None`` is given when nothing came for ``heartbeat_seconds``.
        """
        self._streams += 1
        self._service.wake()
        try:
            with self._notifier.listener() as listener:
                silent = 0.0
                while not self._closed:
                    listener.forget()
                    entries = await self._after(cursor, chosen)
                    if entries is None:
                        return
                    for entry in entries:
                        yield entry
                    if entries:
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
        """Moves the cursor. ``None``: events have expired that it has not come to."""
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
            # Asked afterwards: what has expired before it was read is seen here.
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
