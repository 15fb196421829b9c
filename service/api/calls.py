"""``/v1/applications/{name}/entries``: calls of an application's entries, answered when an epoch has committed."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from epochal.errors import InboxFull, InvalidArguments, OutcomeUnknown, RequestIdReused
from epochal.service.api.access import by_request_id, requires, unmetered
from epochal.service.api.context import Control
from epochal.service.api.openapi import answers, body_of
from epochal.service.api.parameters import Paging
from epochal.service.domain.entry_calls import AcceptedCalls
from epochal.service.domain.pages import cut
from epochal.service.queries.calls import FoundAnswers
from epochal.wire.bodies import Page
from epochal.wire.calls import (
    DEFAULT_WAIT_SECONDS,
    AnswerSeconds,
    CallAnswer,
    CallAnswers,
    CallRequest,
    EntryDescription,
    RequestId,
)
from epochal.wire.projects import FullName, application_path
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/entries", tags=["entries"])

_WAITING: dict[int | str, dict[str, Any]] = {
    202: {
        "description": "Not all calls have been answered yet; they are accepted and continue. `Location` has the "
        "answer of a single call. Repeat the same request to get the answers of several.",
        "headers": {"Location": {"schema": {"type": "string"}, "description": "URL of the answer of a single call."}},
    }
}
Seconds = Annotated[AnswerSeconds, Query(alias="wait")]


@router.get("")
@requires(Role.VIEWER)
def list_entries(name: FullName, page: Paging, control: Control) -> Page[EntryDescription]:
    """List the entries of the running version, or of the version that a start would run, by name."""
    after = page.after(str)
    found = [entry for entry in control.entries.entries(name) if after is None or entry.name > after[0]]
    part = cut(found[: page.limit + 1], page, lambda entry: [entry.name])
    return Page(items=part.rows, next_cursor=part.next_cursor)


@router.post(
    "/{entry}", response_model=CallAnswer | CallAnswers, responses=_WAITING, openapi_extra=body_of(CallRequest)
)
@requires(Role.OPERATOR)
@by_request_id
@answers(InvalidArguments, RequestIdReused, InboxFull, OutcomeUnknown)
async def call_entry(
    request: Request, name: FullName, entry: str, control: Control, seconds: Seconds = DEFAULT_WAIT_SECONDS
) -> Response:
    """Submit one call, or up to 1,000 in `calls`, which are accepted all or none. Calls are durable before they are
    answered, numbered in order of arrival, and executed exactly once. The answer is sent when the epoch that contains
    the call has committed.

    Repeat a call with its `request_id`: the same id with the same arguments is the same call, whatever its state; with
    other arguments it is refused (409 `request-id-reused`). `Idempotency-Key` is not supported.
    """
    # Parsing and checking a thousand calls takes milliseconds: not in the event loop.
    taken, single = await asyncio.to_thread(_take, control, name, entry, await request.body())
    found = await control.answers.wait(taken, seconds)
    if single:
        return _one(taken, found)
    return _answer(f'{{"calls":[{",".join(found.texts)}]}}', 200 if found.settled else 202)


@router.get("/{entry}/calls/{request_id}", response_model=CallAnswer, responses=_WAITING)
@requires(Role.VIEWER)
@unmetered
async def read_call(
    name: FullName, entry: str, request_id: RequestId, control: Control, seconds: Seconds = 0.0
) -> Response:
    """Return the state of a call on the application's current branch; after a rollback, calls are executed again.
    404 if the call does not exist or its record has expired."""
    taken = await asyncio.to_thread(control.entries.call, name, entry, request_id)
    return _one(taken, await control.answers.wait(taken, seconds))


def _take(control: Control, name: str, entry: str, body: bytes) -> tuple[AcceptedCalls, bool]:
    try:
        return control.calls.take(name, entry, body)
    except ValidationError as error:
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in error.errors()]) from error


def _one(taken: AcceptedCalls, found: FoundAnswers) -> Response:
    (text,) = found.texts
    if found.settled:
        return _answer(text, 200)
    (request_id,) = taken.calls
    place = f"{application_path(taken.application)}/entries/{taken.entry.name}/calls/{request_id}"
    return _answer(text, 202, {"Location": place})


def _answer(text: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, "application/json")
