"""Entries, and the answers of their calls: waited for by the commit of the epoch that has them, read all at once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from epochal.contracts.identity import EpochKey
from epochal.errors import EpochalError
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.entries import entries_of, entry_of
from epochal.service.catalog.inboxes import InboxRepository, taken_by_committed
from epochal.service.domain.calls import TakenCall
from epochal.service.domain.entries import TakenCalls
from epochal.service.domain.reading import ReadFrom
from epochal.service.queries.state.lookups import Lookups
from epochal.service.runtime.replicas.serving import FALLBACK_SECONDS, ServedReplicas
from epochal.wire.entries import CallAnswer, EntryAnswer

_AT_ONCE = 10_000
"""Keys of one look-up."""


class EntryQueries:
    """Each raises ``NotFound`` for what is not there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(self, application: str) -> list[EntryAnswer]:
        """By name."""
        with self._database.reading() as session:
            found = entries_of(session, ApplicationRepository(session).named(application))
        return [found[name].answer for name in sorted(found)]

    def call(self, application: str, entry: str, request_id: str) -> TakenCalls:
        with self._database.reading() as session:
            id, declared = entry_of(session, application, entry)
            return TakenCalls(application, declared, {request_id: InboxRepository(session, id).find(entry, request_id)})


@dataclass(eq=False)
class _Waiting:
    """Whoever waits for the answers of some calls. ``settled``: those that are there, by request id."""

    calls: Mapping[str, TakenCall]
    all_settled: asyncio.Event = field(default_factory=asyncio.Event)
    settled: dict[str, CallAnswer] = field(default_factory=dict)

    @property
    def left(self) -> list[str]:
        return [request_id for request_id in self.calls if request_id not in self.settled]


class Answers:
    """However many wait, each epoch that is committed costs one look-up in each state table of answers. Of one event
    loop."""

    def __init__(self, database: Database, replicas: ServedReplicas, lookups: Lookups) -> None:
        self._database = database
        self._replicas = replicas
        self._lookups = lookups
        self._waiting: dict[tuple[str, str], set[_Waiting]] = defaultdict(set)
        self._looking: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def wait(self, taken: TakenCalls, seconds: float) -> list[CallAnswer]:
        """In the order of the calls. Those that are not answered when the time is over are ``waiting``."""
        waiting = _Waiting(taken.calls)
        if not all(call.new for call in taken.calls.values()):
            await self._look(taken.application, taken.entry.table, [waiting])
            await self._find_expired(taken, waiting)
        if waiting.left and seconds > 0:
            place = taken.application, taken.entry.table
            self._waiting[place].add(waiting)
            if place not in self._looking or self._looking[place].done():
                self._looking[place] = asyncio.create_task(self._look_on(place))
            try:
                await asyncio.wait_for(waiting.all_settled.wait(), seconds)
            except TimeoutError:
                pass
            finally:
                self._waiting[place].discard(waiting)
        return [waiting.settled.get(id) or CallAnswer(request_id=id, state="waiting") for id in taken.calls]

    async def _look_on(self, place: tuple[str, str]) -> None:
        """As long as anybody waits: when a replica has moved, and now and then."""
        application, table = place
        with self._replicas.moved.listener() as listener:
            while self._waiting[place]:
                listener.forget()
                await self._look(application, table, list(self._waiting[place]))
                await listener.wait(FALLBACK_SECONDS)
        del self._waiting[place], self._looking[place]

    async def _look(self, application: str, table: str, waiting: Sequence[_Waiting]) -> None:
        request_ids = list({request_id for one in waiting for request_id in one.left})
        for start in range(0, len(request_ids), _AT_ONCE):
            some = request_ids[start : start + _AT_ONCE]
            try:
                at, rows = await self._rows(application, table, some)
            except EpochalError:
                return  # nothing was committed yet, or no replica is there yet: it is looked again
            found = dict(zip(some, rows, strict=True))
            for one in waiting:
                _settle(one, found, at)

    async def _rows(
        self, application: str, table: str, request_ids: Sequence[str], min_epoch: int | None = None
    ) -> tuple[EpochKey, list[dict[str, Any] | None]]:
        keys = [{"request_id": request_id} for request_id in request_ids]
        read = ReadFrom(min_epoch=min_epoch, wait_seconds=0.0 if min_epoch is None else FALLBACK_SECONDS)
        answer = await self._lookups.batch(application, table, keys, read)
        return answer.at, orjson.loads(b"[" + b",".join(answer.values) + b"]")

    async def _find_expired(self, taken: TakenCalls, waiting: _Waiting) -> None:
        """Calls of earlier that a committed epoch has taken, and that its state does not have any more."""
        old = [request_id for request_id in waiting.left if not taken.calls[request_id].new]
        if not old:
            return
        try:
            epoch, through = await asyncio.to_thread(self._committed, taken.application)
            old = [request_id for request_id in old if taken.calls[request_id].number <= through]
            at, rows = await self._rows(taken.application, taken.entry.table, old, epoch)
        except EpochalError:
            return
        for request_id, row in zip(old, rows, strict=True):
            if row is None or row["sequence"] != taken.calls[request_id].number:
                waiting.settled[request_id] = CallAnswer(
                    request_id=request_id, state="expired", branch=at.branch, epoch=at.epoch
                )

    def _committed(self, application: str) -> tuple[int, int]:
        with self._database.reading() as session:
            return taken_by_committed(session, ApplicationRepository(session).named(application))


def _settle(waiting: _Waiting, found: Mapping[str, dict[str, Any] | None], at: EpochKey) -> None:
    """A row with another number is of the application that this one was forked from."""
    for request_id in waiting.left:
        row = found.get(request_id)
        if row is not None and row["answered"] and row["sequence"] == waiting.calls[request_id].number:
            waiting.settled[request_id] = CallAnswer(
                request_id=request_id,
                state="answered",
                value=None if row["value"] is None else orjson.loads(row["value"]),
                error=row["error"],
                branch=at.branch,
                epoch=at.epoch,
            )
    if not waiting.left:
        waiting.all_settled.set()
