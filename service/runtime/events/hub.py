"""The control plane's event sink: a journal, and everybody in this process who waits for it to grow."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import lmdb

from epochal.service.domain.ports import ControlEvent
from epochal.service.runtime.events.bell import Bell
from epochal.service.runtime.events.journal import EventFilter, Journal, JournalEntry

log = logging.getLogger("epochal.events")

Listener = Callable[[ControlEvent], None]

OTHER_PROCESSES_SECONDS = 1.0
"""How often a waiting stream looks for what another control plane has written."""


class EventHub:
    """The :class:`epochal.service.domain.ports.EventSink` of a control plane. Replicas listen to it, too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._incoming: queue.SimpleQueue[ControlEvent | None] = queue.SimpleQueue()
        self._listeners: list[Listener] = []
        self._bell = Bell()
        self._lock = threading.Lock()
        self._journal: Journal | None = None
        self._closed = False
        self._writer = threading.Thread(target=self._write, name="events", daemon=True)

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            raise RuntimeError("the event hub is not open")
        return self._journal

    def open(self) -> None:
        self._journal = Journal(self._directory)
        self._writer.start()

    def close(self) -> None:
        """Write what was published, and end all streams."""
        self._closed = True
        self._incoming.put(None)
        if self._writer.is_alive():
            self._writer.join(timeout=5)
        self._bell.ring()
        if self._journal is not None:
            self._journal.close()

    def publish(self, event: ControlEvent) -> None:
        self._incoming.put(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed at an event of %s", event.application)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with every event of this process, from the publisher's thread: it must be quick."""
        self._listeners.append(listener)

    def position(self, after: int | None) -> int:
        """Where a stream goes on that has seen number ``after``; ``None``: from now on."""
        last = self.journal.last()
        return last if after is None or after > last else after

    async def stream(
        self, chosen: EventFilter, position: int, heartbeat_seconds: float
    ) -> AsyncIterator[JournalEntry | None]:
        """Events after ``position``, as they come; ends when the hub closes.

        ``None`` is given when nothing came for ``heartbeat_seconds``.
        """
        with self._bell.listener() as listener:
            silent = 0.0
            while not self._closed:
                listener.forget()
                entries, position = self.journal.after(position, chosen)
                for entry in entries:
                    yield entry
                if entries:
                    silent = 0.0
                    continue
                if silent >= heartbeat_seconds:
                    silent = 0.0
                    yield None
                pause = min(OTHER_PROCESSES_SECONDS, heartbeat_seconds)
                await listener.wait(pause)
                silent += pause

    def _write(self) -> None:
        while True:
            events = [self._incoming.get()]
            while not self._incoming.empty():
                events.append(self._incoming.get())
            kept = [event for event in events if event is not None]
            if kept:
                try:
                    self.journal.append(kept)
                except lmdb.Error as error:
                    log.error("%d events could not be kept: %s", len(kept), error)
                self._bell.ring()
            if len(kept) < len(events):
                return
