"""``/v1/applications/{name}/events`` and ``/v1/events``: server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse

from epochal.service.api.access import requires
from epochal.service.api.context import control_plane
from epochal.service.domain.ports import EventKind
from epochal.service.runtime.events.hub import EventHub
from epochal.service.runtime.events.journal import EventFilter, JournalEntry
from epochal.wire.bodies import Name
from epochal.wire.scopes import Scope

router = APIRouter(tags=["events"])

HEARTBEAT_SECONDS = 10.0
_RETRY = b"retry: 1000\n\n"
_HEARTBEAT = b": still here\n\n"

Kinds = Annotated[list[EventKind] | None, Query(alias="kind", description="Only of this kind. Repeatable.")]


@router.get(
    "/v1/applications/{name}/events",
    summary="What changes, as server-sent events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
@requires(Scope.READ)
async def events(
    request: Request,
    name: Name,
    kinds: Kinds = None,
    last_event_id: Annotated[int | None, Header(ge=0, description="Go on after this event.")] = None,
) -> StreamingResponse:
    """Kinds: `epoch`, `execution`, `savepoint`, `operation`; `data` is JSON and names the application. Numbers rise.
    A client that reconnects with `Last-Event-ID` gets what it missed, as far as it is kept."""
    plane = control_plane(request)
    await asyncio.to_thread(plane.snapshots.head, name)  # 404 for an unknown application
    chosen = EventFilter(frozenset([name]), None if kinds is None else frozenset(kinds))
    return _answer(plane.events, chosen, last_event_id, lambda entry: b"%d" % entry.number)


@router.get(
    "/v1/events",
    summary="What changes in all applications, as server-sent events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
@requires(Scope.READ)
async def all_events(
    request: Request,
    kinds: Kinds = None,
    applications: Annotated[
        list[Name] | None, Query(alias="application", description="Only of this application. Repeatable.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(pattern=r"^[a-z0-9-]*/[0-9]{1,18}$", description="Go on after this event.")
    ] = None,
) -> StreamingResponse:
    """As the events of one application, of all that the caller may read. An id is `application/number`; that of what
    concerns no application (an import that has not succeeded) begins with the slash. Applications need not be there
    yet. To go on, send the id that came last; within an application numbers rise."""
    chosen = EventFilter(
        None if applications is None else frozenset(applications), None if kinds is None else frozenset(kinds)
    )
    after = None if last_event_id is None else int(last_event_id.rpartition("/")[2])
    return _answer(control_plane(request).events, chosen, after, event_id)


def event_id(entry: JournalEntry) -> bytes:
    """What names an event among those of all applications."""
    return b"%s/%d" % (entry.application.encode(), entry.number)


def _answer(
    hub: EventHub, chosen: EventFilter, after: int | None, id_of: Callable[[JournalEntry], bytes]
) -> StreamingResponse:
    # Decided before the answer begins: what happens after a client has seen its headers is never missed.
    position = hub.position(after)
    return StreamingResponse(
        _stream(hub, chosen, position, id_of), media_type="text/event-stream", headers={"cache-control": "no-store"}
    )


async def _stream(
    hub: EventHub, chosen: EventFilter, position: int, id_of: Callable[[JournalEntry], bytes]
) -> AsyncIterator[bytes]:
    yield _RETRY
    async for entry in hub.stream(chosen, position, HEARTBEAT_SECONDS):
        yield _HEARTBEAT if entry is None else _event(entry, id_of(entry))


def _event(entry: JournalEntry, id: bytes) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id, entry.kind.encode(), entry.data)
