"""Calls of entries are taken into the inbox of their application: checked first, then numbered, then durable."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from epochal.errors import EpochalError, InvalidArguments
from epochal.service.catalog.database import Database
from epochal.service.catalog.declared_entries import entry_of
from epochal.service.catalog.inboxes import InboxRepository, NewCall, NewCalls, Taken
from epochal.service.catalog.writes import TAKE_CALLS
from epochal.service.domain.entry_calls import DeclaredEntry, TakenCalls
from epochal.service.domain.events import CALL, Topics
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.settings import Limits
from epochal.wire.calls import MOST_CALLS, Call, CallRequest, are_request_ids

_TOGETHER = 20_000
"""So many calls are in one transaction at most, and the rest of a request."""


class CallService:
    """``tell``: others are to look for what has come."""

    def __init__(self, database: Database, limits: Limits, tell: Callable[[Topics], None]) -> None:
        self._database = database
        self._limits = limits
        self._intake = _Intake(database, limits.calls_waiting, tell)

    def take(self, application: str, entry: str, body: bytes) -> tuple[TakenCalls, bool]:
        """All calls of a request, or none; and whether it was a single one. They are durable when this returns, and
        will be carried out. ``body``: a ``CallRequest`` as JSON.

        A request id that is known, with the same arguments, is the call that has it. Raises ``NotFound``,
        ``InvalidArguments``, ``RequestIdReused``, ``InboxFull``; ``OutcomeUnknown``: repeat it, with its request ids;
        ``ValidationError`` where the body is no request.
        """
        with self._database.reading() as session:
            id, declared = entry_of(session, application, entry)
        calls, single = self._plain(declared, body), False
        if calls is None:
            request = CallRequest.model_validate_json(body)
            asked: Sequence[Call] = [request] if request.calls is None else request.calls
            single = request.calls is None
            calls = self._checked(declared, asked, many=not single)
        taken = self._intake.take(id, NewCalls(entry, calls))
        return TakenCalls(application, declared, {call.request_id: taken[call.request_id] for call in calls}), single

    def _plain(self, entry: DeclaredEntry, body: bytes) -> tuple[NewCall, ...] | None:
        """Many calls that all have a request id and plain arguments, in a fraction of the time that :meth:`_checked`
        takes; ``None`` where anything is otherwise, or wrong."""
        try:
            request = orjson.loads(body)
            asked = request["calls"]
            ids, arguments = [call["request_id"] for call in asked], [call["arguments"] for call in asked]
            plain = len(request) == 1 and 0 < len(asked) <= MOST_CALLS and set(map(len, asked)) == {2}
            if not plain or not are_request_ids(ids) or len(set(ids)) < len(ids):
                return None
        except (orjson.JSONDecodeError, LookupError, TypeError):
            return None
        texts = entry.checked_plain(arguments, self._limits.call_bytes)
        return None if texts is None else NewCall.all_of(entry.name, ids, texts)

    def _checked(self, entry: DeclaredEntry, calls: Sequence[Call], many: bool) -> tuple[NewCall, ...]:
        checked: dict[str, NewCall] = {}
        for number, call in enumerate(calls):
            where = f"Call {number}, " if many else "A call of "
            arguments = entry.checked(call.arguments, where, self._limits.call_bytes)
            request_id = call.request_id or new_id()
            if request_id in checked:
                raise InvalidArguments(f"{where}entry {entry.name!r}: the request id {request_id!r} comes twice.")
            checked[request_id] = NewCall.of(entry.name, request_id, arguments)
        return tuple(checked.values())


@dataclass
class _Waiting:
    """A request that waits for its transaction. ``turn`` is set when it has its outcome, or is to lead the next one."""

    calls: NewCalls
    turn: threading.Event = field(default_factory=threading.Event)
    outcome: Taken | EpochalError | None = None


class _Intake:
    """Group commit: what comes to an application while a transaction is under way goes with the next one."""

    def __init__(self, database: Database, most_waiting: int, tell: Callable[[Topics], None]) -> None:
        self._database = database
        self._most_waiting = most_waiting
        self._tell = tell
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {}
        """Of applications for which a transaction is under way: what comes with the next one."""

    def take(self, application: str, calls: NewCalls) -> Taken:
        mine = _Waiting(calls)
        with self._lock:
            leads = application not in self._queues
            self._queues.setdefault(application, deque()).append(mine)
        if not leads:
            mine.turn.wait()
        if mine.outcome is None:
            self._lead(application)
        assert mine.outcome is not None
        if isinstance(mine.outcome, EpochalError):
            raise mine.outcome
        return mine.outcome

    def _lead(self, application: str) -> None:
        """One transaction, with what waits; then the first of those that came meanwhile leads."""
        together = self._next(application)
        try:
            outcomes = self._committed(application, [waiting.calls for waiting in together])
        except EpochalError as error:
            outcomes = [error] * len(together)
        except BaseException:
            outcomes = [EpochalError("The calls could not be taken; the control plane's log says why.")] * len(together)
            raise
        finally:
            with self._lock:
                queue = self._queues[application]
                following = queue[0] if queue else None
                if following is None:
                    del self._queues[application]
            for waiting, outcome in zip(together, outcomes, strict=True):
                waiting.outcome = outcome
                waiting.turn.set()
            if following is not None:
                following.turn.set()

    def _next(self, application: str) -> list[_Waiting]:
        together, calls = list[_Waiting](), 0
        with self._lock:
            queue = self._queues[application]
            while queue and calls < _TOGETHER:
                together.append(queue.popleft())
                calls += len(together[-1].calls.calls)
        return together

    def _committed(self, application: str, calls: Sequence[NewCalls]) -> Sequence[Taken | EpochalError]:
        with self._database.writing(TAKE_CALLS) as session:
            outcomes = InboxRepository(session, application).take(calls, self._most_waiting)
        if any(call.new for taken in outcomes if not isinstance(taken, EpochalError) for call in taken.values()):
            self._tell(frozenset({CALL}))
        return outcomes
