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

# What the control plane needs to take the calls, on top of the time it was asked to wait for their answers.
ANSWER_SECONDS = 30.0


class Entries:
    """``client.application(name).entries``, by name: ``entries["get"]``."""

    def __init__(self, transport: Transport, application: str) -> None:
        self._transport = transport
        self._application = application

    def __getitem__(self, name: str) -> Entry:
        return Entry(self._transport, self._application, name)

    def list(self) -> list[EntryDescription]:
        """By name: what each takes and returns."""
        return self._transport.pages(path("applications", self._application, "entries"), EntryDescription, None)


class Entry:
    """One entry. Every call gets a request id here, if it has none: repeated, it is the same call.

    ``wait_seconds``: for its answer. When that time is over the call goes on all the same: :meth:`answer` asks again.
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
        """One call: ``entries["get"].call(key="a")``. Its ``value``, or the ``error`` that the application answers.

        With ``wait_seconds=0`` it may be ``waiting``. Raises ``NotYetCommitted`` when it is not answered in time,
        ``InvalidArguments``, ``RequestIdReused``, ``InboxFull``.
        """
        one = {"request_id": request_id or uuid.uuid4().hex, "arguments": {**(arguments or {}), **named}}
        return self.call_many([one], wait_seconds=wait_seconds)[0]

    def call_many(
        self, calls: Sequence[Mapping[str, Any]], *, wait_seconds: float = DEFAULT_WAIT_SECONDS
    ) -> list[CallAnswer]:
        """Many calls, ``{"arguments": {..}, "request_id": ".."}`` each, a thousand in a request.

        Their answers are in the same order. Each request is taken as a whole or not at all. Raises as :meth:`call`.
        """
        deadline = time.monotonic() + wait_seconds
        named = [{"request_id": uuid.uuid4().hex, **call} for call in calls]
        parts = [named[start : start + MOST_CALLS] for start in range(0, len(named), MOST_CALLS)]
        # All are taken before any is waited for: so they are answered by as few epochs as can be.
        answers = [self._post(part, 0.0 if len(parts) > 1 else _left(deadline)) for part in parts]
        for number, part in enumerate(parts):
            while any(answer.state == "waiting" for answer in answers[number]) and _left(deadline) > 0:
                answers[number] = self._post(part, _left(deadline))
        found = [answer for part_answers in answers for answer in part_answers]
        waiting = [answer.request_id for answer in found if answer.state == "waiting"]
        if waiting and wait_seconds > 0:
            raise NotYetCommitted(
                f"{len(waiting)} of {len(found)} calls of entry {self._name!r} of {self._application!r} are not "
                f"answered after {wait_seconds:g} s. They are taken and go on: ask again by the request id, the first "
                f"of which is {waiting[0]!r}."
            )
        return found

    def answer(self, request_id: str, *, wait_seconds: float = 0.0) -> CallAnswer:
        """What has become of a call. Raises ``NotFound`` when there is none with this id."""
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
