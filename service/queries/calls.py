"""Entries and the answers of their calls: each committed epoch is read once for all waiting callers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson
import pyarrow as pa

from epochal.contracts.inbox import AcceptedCall
from epochal.declarations.entry import REQUEST_ID, SEQUENCE
from epochal.errors import EpochalError
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.declared_entries import entries_of, entry_of
from epochal.service.catalog.inboxes import InboxRepository, taken_by_committed
from epochal.service.domain.entry_calls import AcceptedCalls
from epochal.service.domain.snapshots import ReadFrom
from epochal.service.queries.state.lookups import FoundColumns, Lookups
from epochal.service.runtime.replicas.serving import FALLBACK_SECONDS, ServedReplicas
from epochal.wire.calls import CallAnswer, EntryDescription

_AT_ONCE = 10_000
"""Keys of one look-up."""


class EntryQueries:
    """Methods raise ``NotFound`` for missing resources."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(self, application: str) -> list[EntryDescription]:
        """Keyed by name."""
        with self._database.reading() as session:
            found = entries_of(session, ApplicationRepository(session).named(application))
        return [found[name].answer for name in sorted(found)]

    def call(self, application: str, entry: str, request_id: str) -> AcceptedCalls:
        with self._database.reading() as session:
            id, declared = entry_of(session, application, entry)
            found = InboxRepository(session, id).find(entry, request_id)
            return AcceptedCalls(application, declared, {request_id: found})


@dataclass(frozen=True)
class FoundAnswers:
    """The text of a ``CallAnswer`` for each call, in order. ``settled``: all calls are answered."""

    texts: Sequence[str]
    settled: bool


@dataclass(eq=False)
class _Waiting:
    """A caller that waits for answers. ``settled``: the text of existing answers, by request id."""

    calls: Mapping[str, AcceptedCall]
    all_settled: asyncio.Event = field(default_factory=asyncio.Event)
    settled: dict[str, str] = field(default_factory=dict)

    def left(self, through: int) -> list[tuple[str, int]]:
        """Request ids and numbers, up to this one, of unanswered calls."""
        return [
            (request_id, call.number)
            for request_id, call in self.calls.items()
            if call.number <= through and request_id not in self.settled
        ]

    def settle(self, answers: Mapping[str, str]) -> None:
        self.settled.update(answers)
        if len(self.settled) == len(self.calls):
            self.all_settled.set()

    @property
    def found(self) -> FoundAnswers:
        texts = [self.settled.get(request_id) or _waits(request_id) for request_id in self.calls]
        return FoundAnswers(texts, len(self.settled) == len(self.calls))


class Answers:
    """Each committed epoch costs one look-up in each state table of answers, for the calls submitted up to it,
    regardless of the number of callers. Used by one event loop."""

    def __init__(self, database: Database, replicas: ServedReplicas, lookups: Lookups) -> None:
        self._database = database
        self._replicas = replicas
        self._lookups = lookups
        self._waiting: dict[tuple[str, str], set[_Waiting]] = defaultdict(set)
        self._looking: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def wait(self, taken: AcceptedCalls, seconds: float) -> FoundAnswers:
        """Calls without an answer at the timeout are ``waiting``."""
        waiting = _Waiting(taken.calls)
        place = taken.application, taken.entry.table
        if not all(call.new for call in taken.calls.values()):
            await self._look(place, [waiting])
            await self._find_expired(taken, waiting)
        if len(waiting.settled) < len(waiting.calls) and seconds > 0:
            self._waiting[place].add(waiting)
            if place not in self._looking or self._looking[place].done():
                self._looking[place] = asyncio.create_task(self._look_on(place))
            try:
                await asyncio.wait_for(waiting.all_settled.wait(), seconds)
            except TimeoutError:
                pass
            finally:
                self._waiting[place].discard(waiting)
        return waiting.found

    async def _look_on(self, place: tuple[str, str]) -> None:
        """Read answers while callers wait: when a replica has advanced, and periodically."""
        with self._replicas.moved.listener() as listener:
            while self._waiting[place]:
                listener.forget()
                await self._look(place, list(self._waiting[place]))
                await listener.wait(FALLBACK_SECONDS)
        del self._waiting[place], self._looking[place]

    async def _look(self, place: tuple[str, str], waiting: Sequence[_Waiting]) -> None:
        application, table = place
        try:
            through = await asyncio.to_thread(self._taken_through, application)
            for some in _together(waiting, through):
                asked = [each for _, left in some for each in left]
                found = await self._found(application, table, asked, ReadFrom(wait_seconds=0.0))
                texts = await asyncio.to_thread(_texts, found, asked)
                for one, left in some:
                    one.settle({request_id: texts[request_id] for request_id, _ in left if request_id in texts})
        except EpochalError:
            return  # nothing was committed yet, or no replica exists yet: read again

    async def _found(
        self, application: str, table: str, asked: Sequence[tuple[str, int]], read: ReadFrom
    ) -> FoundColumns:
        request_ids = pa.array([request_id for request_id, _ in asked], pa.string())
        return await self._lookups.columns(application, table, pa.table({REQUEST_ID.name: request_ids}), read)

    async def _find_expired(self, taken: AcceptedCalls, waiting: _Waiting) -> None:
        """Earlier calls that a committed epoch has processed, and whose answers its state no longer has."""
        try:
            epoch, through = await asyncio.to_thread(self._committed, taken.application)
            old = [each for each in waiting.left(through) if not taken.calls[each[0]].new]
            if not old:
                return
            read = ReadFrom(min_epoch=epoch, wait_seconds=FALLBACK_SECONDS)
            found = await self._found(taken.application, taken.entry.table, old, read)
        except EpochalError:
            return
        there = set(found.rows.column(SEQUENCE.name).to_pylist())
        gone = [request_id for request_id, number in old if number not in there]
        answer = CallAnswer(request_id="", state="expired", branch=found.at.branch, epoch=found.at.epoch)
        waiting.settle({id: answer.model_copy(update={"request_id": id}).model_dump_json() for id in gone})

    def _taken_through(self, application: str) -> int:
        """Calls above this number are in no epoch."""
        with self._database.reading() as session:
            return InboxRepository(session, ApplicationRepository(session).named(application).id).taken_through()

    def _committed(self, application: str) -> tuple[int, int]:
        with self._database.reading() as session:
            return taken_by_committed(session, ApplicationRepository(session).named(application))


def _together(waiting: Sequence[_Waiting], through: int) -> Iterator[list[tuple[_Waiting, list[tuple[str, int]]]]]:
    """Group missing answers into look-ups of limited size."""
    some, calls = list[tuple[_Waiting, list[tuple[str, int]]]](), 0
    for one in waiting:
        left = one.left(through)
        if left:
            some.append((one, left))
            calls += len(left)
        if calls >= _AT_ONCE:
            yield some
            some, calls = [], 0
    if some:
        yield some


def _texts(found: FoundColumns, asked: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Answers by request id. A row with another number belongs to the application from which this one was forked."""
    there, rows = np.flatnonzero(found.there), found.rows
    expected = np.fromiter((number for _, number in asked), np.int64, len(asked))[there]
    mine = np.asarray(rows.column("answered")) & (np.asarray(rows.column(SEQUENCE.name)) == expected)
    answered = rows.filter(pa.array(mine))
    request_ids = [asked[place][0] for place in there[mine].tolist()]
    values, errors = answered.column("value").to_pylist(), answered.column("error").to_pylist()
    end = f',"branch":"{found.at.branch}","epoch":{found.at.epoch}}}'
    return {
        id: f'{{"request_id":"{id}","state":"answered",{_said(value, error)}{end}'
        for id, value, error in zip(request_ids, values, errors, strict=True)
    }


def _said(value: str | None, error: str | None) -> str:
    """``value`` is from the author's code and should be JSON."""
    if value is None:
        value = "null"
    else:
        try:
            orjson.loads(value)
        except orjson.JSONDecodeError:
            value, error = "null", error or "The application answered with a value that is not JSON."
    return f'"value":{value},"error":{"null" if error is None else orjson.dumps(error).decode()}'


def _waits(request_id: str) -> str:
    return CallAnswer(request_id=request_id, state="waiting").model_dump_json()
