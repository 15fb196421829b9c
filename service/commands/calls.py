"""Calls of entries: checked, numbered, and stored durably in the inbox of their application."""

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
from epochal.service.domain.entry_calls import AcceptedCalls, DeclaredEntry
from epochal.service.domain.events import CALL, Topics
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.setting_sections import Limits
from epochal.wire.calls import MOST_CALLS, Call, CallRequest, are_request_ids

_TOGETHER = 20_000
"""Maximum number of calls in one transaction, apart from the rest of a request."""


class CallService:
    """``tell`` notifies others of new calls."""

    def __init__(self, database: Database, limits: Limits, tell: Callable[[Topics], None]) -> None:
        self._database = database
        self._limits = limits
        self._intake = _Intake(database, limits.calls_waiting, tell)

    def take(self, application: str, entry: str, body: bytes) -> tuple[AcceptedCalls, bool]:
        """Accept all calls of a request, or none. Returns them, and whether the request was a single call. The calls
        are durable on return, and will be executed. ``body``: a ``CallRequest`` as JSON.

        A known request id with the same arguments identifies the existing call. Raises ``NotFound``,
        ``InvalidArguments``, ``RequestIdReused``, ``InboxFull``; ``OutcomeUnknown``: repeat the request with its
        request ids; ``ValidationError`` for an invalid body.
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
        return AcceptedCalls(application, declared, {call.request_id: taken[call.request_id] for call in calls}), single

    def _plain(self, entry: DeclaredEntry, body: bytes) -> tuple[NewCall, ...] | None:
        """Fast path for several calls that all have a request id and plain arguments, much faster than
        :meth:`_checked`. ``None`` in all other cases, including errors."""
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
                raise InvalidArguments(f"{where}entry {entry.name!r}: duplicate request id {request_id!r}.")
            checked[request_id] = NewCall.of(entry.name, request_id, arguments)
        return tuple(checked.values())


@dataclass
class _Waiting:
    """A request that waits for its transaction. ``turn`` is set when it has its outcome, or must run the next one."""

    calls: NewCalls
    turn: threading.Event = field(default_factory=threading.Event)
    outcome: Taken | EpochalError | None = None


class _Intake:
    """Group commit: calls that arrive during a transaction of an application join the next one."""

    def __init__(self, database: Database, most_waiting: int, tell: Callable[[Topics], None]) -> None:
        self._database = database
        self._most_waiting = most_waiting
        self._tell = tell
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Waiting]] = {}
        """Waiting requests of applications with a transaction in progress."""

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
        """Run one transaction for all waiting requests; then the first of the new ones runs the next."""
        together = self._next(application)
        try:
            outcomes = self._committed(application, [waiting.calls for waiting in together])
        except EpochalError as error:
            outcomes = [error] * len(together)
        except BaseException:
            outcomes = [EpochalError("The calls could not be accepted; the control plane's log has the reason.")] * len(
                together
            )
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
