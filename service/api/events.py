"""``/v1/applications/{name}/events`` and ``/v1/events``: server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from epochal.errors import EventsExpired, TooManyRequests
from epochal.service.api.access import requires
from epochal.service.api.context import control_plane
from epochal.service.api.following import Admission, FollowedResponse, followers_of
from epochal.service.api.openapi import answers
from epochal.service.api.project_paths import InProject
from epochal.service.catalog.events import EventEntry, EventFilter
from epochal.service.domain.events import StreamedKind
from epochal.service.runtime.events.hub import Cursor, EventHub
from epochal.wire.bodies import Name
from epochal.wire.projects import FullName, full_name, local_name
from epochal.wire.tokens import Role

router = APIRouter(tags=["events"])

HEARTBEAT_SECONDS = 15.0
_MEDIA_TYPE = "text/event-stream"
_RETRY = b"retry: 1000\n\n"
_HEARTBEAT = b": still here\n\n"

_AFTER = "Resume after this event, as the header `Last-Event-ID`, which takes precedence."
_LARGEST = 2**63 - 1
_ID = r"^[a-z0-9-]*/[0-9]{1,18}$"

Kinds = Annotated[
    list[StreamedKind] | None,
    Query(alias="kind", description="Only events of this kind. Repeatable; by default, all but `load`."),
]


@router.get(
    "/v1/applications/{name}/events",
    summary="Events of an application (server-sent events)",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
@requires(Role.VIEWER)
@answers(EventsExpired, TooManyRequests)
async def events(
    request: Request,
    name: FullName,
    kinds: Kinds = None,
    after: Annotated[int | None, Query(ge=0, le=_LARGEST, description=_AFTER)] = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=_LARGEST, description="Resume after this event.")] = None,
) -> StreamingResponse:
    """Kinds: `epoch`, `execution`, `savepoint`, `operation`, `straggler` (a slow subtask has moved to another
    machine), `transaction` (a sink is blocked or free again, or an order for one of its transactions was carried out),
    `load`; `data` is JSON and names the application. The id is the event's number, which increases; it is the same
    at every control plane of a catalog. A client that reconnects with `Last-Event-ID`, or with `after`, receives the
    events that it missed, each once. If some of them have expired, the answer is 410 (`events-expired`): read the
    current state, then connect without both. A comment is sent after 15 s without an event. The stream ends within
    30 s after the token or session of the caller.

    Events of kind `load` have the fields of `GET /v1/lags`. They are sent only if `kind` selects them, have no id and
    are not repeated: each connection begins with the current load of the running application, and continues with
    changes, at most one every 10 s."""
    plane, followers = control_plane(request), followers_of(request)
    followers.check()
    await asyncio.to_thread(plane.snapshots.head, name)  # 404 for an unknown application
    chosen = EventFilter(frozenset([name]), None if kinds is None else frozenset(kinds))
    # Decided before the answer begins, so that no event after the response headers is missed.
    cursor = await asyncio.to_thread(plane.events.begin, name, after if last_event_id is None else last_event_id)
    stream = _stream(plane.events, chosen, cursor, lambda entry: b"%d" % entry.number, Admission(request))
    return FollowedResponse(followers, stream, _MEDIA_TYPE)


@router.get(
    "/v1/events",
    summary="Events of all applications of a project (server-sent events)",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
@requires(Role.VIEWER)
@answers(EventsExpired, TooManyRequests)
async def all_events(
    request: Request,
    project: InProject,
    kinds: Kinds = None,
    applications: Annotated[
        list[Name] | None, Query(alias="application", description="Only events of this application. Repeatable.")
    ] = None,
    after: Annotated[str | None, Query(pattern=_ID, description=_AFTER)] = None,
    last_event_id: Annotated[str | None, Header(pattern=_ID, description="Resume after this event.")] = None,
) -> StreamingResponse:
    """Like the events of one application, for all applications of the project. The id is `application/number`; the
    id of an event without an application (work on the whole store) begins with the slash. Applications need not
    exist yet. To resume, send the last id received; numbers increase within an application. 410 if a later event of
    any application has expired."""
    chosen = EventFilter(
        None if applications is None else frozenset(full_name(project, each) for each in applications),
        None if kinds is None else frozenset(kinds),
        project,
    )
    hub, followers = control_plane(request).events, followers_of(request)
    followers.check()
    last = after if last_event_id is None else last_event_id
    cursor = await asyncio.to_thread(hub.begin_all, None if last is None else _parsed(last, project))
    stream = _stream(hub, chosen, cursor, event_id, Admission(request))
    return FollowedResponse(followers, stream, _MEDIA_TYPE)


def event_id(entry: EventEntry) -> bytes:
    """Id of an event among the events of all applications of a project."""
    return b"%s/%d" % (local_name(entry.application).encode(), entry.number)


def _parsed(event_id: str, project: str) -> tuple[str, int]:
    application, _, number = event_id.rpartition("/")
    return full_name(project, application), int(number)


async def _stream(
    hub: EventHub,
    chosen: EventFilter,
    cursor: Cursor,
    id_of: Callable[[EventEntry], bytes],
    admission: Admission,
) -> AsyncIterator[bytes]:
    yield _RETRY
    async with aclosing(hub.stream(chosen, cursor, HEARTBEAT_SECONDS)) as entries:
        async for entry in entries:
            if await admission.has_ended():
                return
            yield _HEARTBEAT if entry is None else _event(entry, id_of(entry) if entry.number else None)


def _event(entry: EventEntry, id: bytes | None) -> bytes:
    numbered = b"" if id is None else b"id: %s\n" % id
    return b"%sevent: %s\ndata: %s\n\n" % (numbered, entry.kind.encode(), entry.data)
