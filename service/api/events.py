"""``/v1/applications/{name}/events`` and ``/v1/events``: server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from epochal.errors import EventsExpired, TooManyRequests
from epochal.service.api.access import requires
from epochal.service.api.context import control_plane
from epochal.service.api.following import FollowedResponse, followers_of
from epochal.service.api.openapi import answers
from epochal.service.api.project_paths import InProject
from epochal.service.catalog.events import EventEntry, EventFilter
from epochal.service.domain.events import EventKind
from epochal.service.runtime.events.hub import Cursor, EventHub
from epochal.wire.bodies import Name
from epochal.wire.projects import FullName, full_name, local_name
from epochal.wire.tokens import Role

router = APIRouter(tags=["events"])

HEARTBEAT_SECONDS = 10.0
_MEDIA_TYPE = "text/event-stream"
_RETRY = b"retry: 1000\n\n"
_HEARTBEAT = b": still here\n\n"

Kinds = Annotated[list[EventKind] | None, Query(alias="kind", description="Only of this kind. Repeatable.")]


@router.get(
    "/v1/applications/{name}/events",
    summary="What changes, as server-sent events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
@requires(Role.VIEWER)
@answers(EventsExpired, TooManyRequests)
async def events(
    request: Request,
    name: FullName,
    kinds: Kinds = None,
    last_event_id: Annotated[int | None, Header(ge=0, description="Go on after this event.")] = None,
) -> StreamingResponse:
    """Kinds: `epoch`, `execution`, `savepoint`, `operation`; `data` is JSON and names the application. An id is the
    event's number, which rises; it is the same at every control plane of a catalog. A client that reconnects with
    `Last-Event-ID` gets what it missed, each event once. Where some of that has expired, the answer is 410
    (`events-expired`): look at what is there now, and listen without the header."""
    plane, followers = control_plane(request), followers_of(request)
    followers.check()
    await asyncio.to_thread(plane.snapshots.head, name)  # 404 for an unknown application
    chosen = EventFilter(frozenset([name]), None if kinds is None else frozenset(kinds))
    # Decided before the answer begins: what happens after a client has seen its headers is never missed.
    cursor = await asyncio.to_thread(plane.events.begin, name, last_event_id)
    stream = _stream(plane.events, chosen, cursor, lambda entry: b"%d" % entry.number)
    return FollowedResponse(followers, stream, _MEDIA_TYPE)


@router.get(
    "/v1/events",
    summary="What changes in all applications, as server-sent events",
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
        list[Name] | None, Query(alias="application", description="Only of this application. Repeatable.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(pattern=r"^[a-z0-9-]*/[0-9]{1,18}$", description="Go on after this event.")
    ] = None,
) -> StreamingResponse:
    """As the events of one application, of all of the project. An id is `application/number`; that of what
    concerns no application (work on the whole store) begins with the slash. Applications need not be there yet. To go
    on, send the id that came last; within an application numbers rise. 410 as there, where an event of any application
    that came later has expired."""
    chosen = EventFilter(
        None if applications is None else frozenset(full_name(project, each) for each in applications),
        None if kinds is None else frozenset(kinds),
        project,
    )
    hub, followers = control_plane(request).events, followers_of(request)
    followers.check()
    cursor = await asyncio.to_thread(hub.begin_all, None if last_event_id is None else _parsed(last_event_id, project))
    return FollowedResponse(followers, _stream(hub, chosen, cursor, event_id), _MEDIA_TYPE)


def event_id(entry: EventEntry) -> bytes:
    """What names an event among those of all applications of a project."""
    return b"%s/%d" % (local_name(entry.application).encode(), entry.number)


def _parsed(event_id: str, project: str) -> tuple[str, int]:
    application, _, number = event_id.rpartition("/")
    return full_name(project, application), int(number)


async def _stream(
    hub: EventHub, chosen: EventFilter, cursor: Cursor, id_of: Callable[[EventEntry], bytes]
) -> AsyncIterator[bytes]:
    yield _RETRY
    async for entry in hub.stream(chosen, cursor, HEARTBEAT_SECONDS):
        yield _HEARTBEAT if entry is None else _event(entry, id_of(entry))


def _event(entry: EventEntry, id: bytes) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id, entry.kind.encode(), entry.data)
