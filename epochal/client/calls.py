"""Calls of an application's entries."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from epochal.client.exchanges import path
from epochal.client.models import CallAnswer, EntryDescription
from epochal.client.transport import Transport
from epochal.errors import NotYetCommitted
from epochal.wire.bodies import read
from epochal.wire.calls import DEFAULT_WAIT_SECONDS, LONGEST_WAIT_SECONDS, MOST_CALLS, CallAnswers

# Time for the request itself, in addition to the requested wait.
ANSWER_SECONDS = 30.0


class Entries:
    """``client.application(name).entries``, by name: ``entries["get"]``."""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def __getitem__(self, name: str) -> Entry:
        return Entry(self._transport, self._application, name)

    def list(self) -> list[EntryDescription]:
        """Entries by name, with arguments and return types."""
        return self._transport.pages(path("applications", self._application, "entries"), EntryDescription, None)


class Entry:
    """One entry. Calls without a request id get one, so that retries do not execute them again.

    ``wait_seconds``: timeout for the answer. The call is executed even if it expires; :meth:`answer` reads it later.
    """

    def __init__(self, transport: Transport, application: str, name: str) -> None:
        self._transport = transport
        self._application, self._name = application, name
        self._path = path("applications", application, "entries", name)

    def call(
        self,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        request_id: str | None = None,
        wait_seconds: float = DEFAULT_WAIT_SECONDS,
        **named: Any,
    ) -> CallAnswer:
        """Call the entry: ``entries["get"].call(key="a")``. The answer has a ``value`` or an ``error`` of the
        application.

        With ``wait_seconds=0`` it may be ``waiting``. Raises ``NotYetCommitted`` if it is not answered in time,
        ``InvalidArguments``, ``RequestIdReused``, ``InboxFull``.
        """
        one = {"request_id": request_id or uuid.uuid4().hex, "arguments": {**(arguments or {}), **named}}
        return self.call_many([one], wait_seconds=wait_seconds)[0]

    def call_many(
        self, calls: Sequence[Mapping[str, Any]], *, wait_seconds: float = DEFAULT_WAIT_SECONDS
    ) -> list[CallAnswer]:
        """Make several calls, each ``{"arguments": {..}, "request_id": ".."}``, in requests of up to a thousand.

        Answers have the same order. Each request is accepted or refused as a whole. Raises as :meth:`call`.
        """
        deadline = time.monotonic() + wait_seconds
        named = [{"request_id": uuid.uuid4().hex, **call} for call in calls]
        parts = [named[start : start + MOST_CALLS] for start in range(0, len(named), MOST_CALLS)]
        # Send all requests before waiting, so that as few epochs as possible answer them.
        answers = [self._post(part, 0.0 if len(parts) > 1 else _left(deadline)) for part in parts]
        for number, part in enumerate(parts):
            while any(answer.state == "waiting" for answer in answers[number]) and _left(deadline) > 0:
                answers[number] = self._post(part, _left(deadline))
        found = [answer for part_answers in answers for answer in part_answers]
        waiting = [answer.request_id for answer in found if answer.state == "waiting"]
        if waiting and wait_seconds > 0:
            raise NotYetCommitted(
                f"{len(waiting)} of {len(found)} calls of entry {self._name!r} of {self._application!r} were not "
                f"answered within {wait_seconds:g} s. They have been accepted. Request their answers with their "
                f"request ids, the first of which is {waiting[0]!r}."
            )
        return found

    def answer(self, request_id: str, *, wait_seconds: float = 0.0) -> CallAnswer:
        """Read the answer of a call. Raises ``NotFound`` for an unknown request id."""
        deadline = time.monotonic() + wait_seconds
        while True:
            left = _left(deadline)
            place = f"{self._path}/calls/{request_id}"
            found = read(CallAnswer, self._transport.get(place, {"wait": left}, left + ANSWER_SECONDS))
            if found.state != "waiting" or _left(deadline) == 0:
                return found

    def _post(self, calls: Sequence[Mapping[str, Any]], wait: float) -> list[CallAnswer]:
        answer = self._transport.query(self._path, {"calls": list(calls)}, wait + ANSWER_SECONDS, {"wait": wait})
        return list(read(CallAnswers, answer).calls)


def _left(deadline: float) -> float:
    return min(LONGEST_WAIT_SECONDS, max(0.0, deadline - time.monotonic()))
