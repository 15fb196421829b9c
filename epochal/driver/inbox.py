"""The inbox of the application's entries, over the internal API: a thread waits for calls in place of the loop.

The inbox buffers received calls until an epoch has taken them: planning, and the first read of a slice, make no
requests.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from epochal.background.service import BackgroundService
from epochal.contracts.inbox import CallBatch, Inbox, InboxPage
from epochal.driver.http_catalog import HttpCatalog
from epochal.errors import EpochalError
from epochal.wire.internal_api import CALLS_AT_ONCE

log = logging.getLogger("epochal.driver")

MOST_KEPT = 4 * CALLS_AT_ONCE
"""Number of buffered calls at which fetching pauses until epochs have taken some."""
_AWAY_SECONDS = 1.0


class HttpInbox(Inbox):
    """An inbox over HTTP. It makes no request for new calls before :meth:`begin`, which a source of calls invokes."""

    def __init__(self, catalog: HttpCatalog) -> None:
        self._catalog = catalog
        self._changed = threading.Condition()
        self._batches = deque[CallBatch]()
        self._taken = self._fetched = 0
        """The batches contain the calls with numbers above ``_taken``, up to ``_fetched``."""
        self._begun = False
        self._news = threading.Event()
        self._service = BackgroundService("calls", self._follow, 0.0, wake=self._notify)

    def close(self) -> None:
        """Stop waiting for calls. Returns immediately."""
        self._service.stop(timeout=0)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()

    def begin(self, after: int) -> None:
        with self._changed:
            if self._begun and self._drop(after):
                return
            self._batches.clear()
            self._taken = self._fetched = after
            if not self._begun:
                self._begun = True
                self._service.start()
            self._changed.notify()

    @property
    def _kept(self) -> int:
        return sum(len(batch.request_ids) for batch in self._batches)

    def _drop(self, after: int) -> bool:
        """Drop the calls up to ``after``, which were taken. False: ``after`` is outside the buffered range."""
        if not self._taken <= after <= self._fetched:
            return False
        self._taken = after
        while self._batches and self._batches[0].last <= after:
            self._batches.popleft()
        return True

    def arrived(self, after: int, most: int | None) -> Sequence[CallBatch]:
        found, left = list[CallBatch](), most
        with self._changed:
            self._drop(after)
            self._changed.notify()
            for batch in self._batches:
                if left is not None and left <= 0:
                    break
                through = batch.last if left is None else max(batch.first, after + 1) + left - 1
                found.append(batch.within(after, through))
                left = None if left is None else left - len(found[-1].request_ids)
        return found

    def read(self, after: int, through: int) -> Sequence[CallBatch]:
        with self._changed:
            if self._taken <= after and through <= self._fetched:
                return _within(self._batches, after, through)
        found = list[CallBatch]()
        while after < through:
            page = self._catalog.calls(after, through)
            if not page.batches:
                break
            found += page.batches
            after = page.batches[-1].last
        return found

    def last(self) -> int:
        return self._catalog.calls(0, 0).last

    def taken(self) -> int:
        return self._catalog.calls(0, 0).taken

    def wait(self, seconds: float) -> None:
        self._news.wait(seconds)
        self._news.clear()

    def _follow(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._service.stopping or self._kept < MOST_KEPT)
            after = self._fetched
        try:
            page = self._catalog.new_calls(after)
        except EpochalError as error:
            # No control plane answers, or it lacks the request: this driver receives no calls for a while.
            log.debug("cannot ask for calls: %s", error)
            self._service.pause(_AWAY_SECONDS)
        else:
            self._news_of(after, page)

    def _news_of(self, after: int, page: InboxPage) -> None:
        with self._changed:
            if page.batches and after == self._fetched:
                self._batches.extend(page.batches)
                self._fetched = page.batches[-1].last
                self._news.set()


def _within(batches: Sequence[CallBatch] | deque[CallBatch], after: int, through: int) -> Sequence[CallBatch]:
    return [batch.within(after, through) for batch in batches if batch.last > after and batch.first <= through]
