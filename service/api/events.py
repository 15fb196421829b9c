"""``/v1/applications/{name}/events``: server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import StreamingResponse

from epochal.service.api.access import requires
from epochal.service.api.context import control_plane
from epochal.service.runtime.events.hub import EventHub
from epochal.service.runtime.events.journal import JournalEntry
from epochal.wire.bodies import Name
from epochal.wire.scopes import Scope

router = APIRouter(tags=["events"])

HEARTBEAT_SECONDS = 10.0
_RETRY = b"retry: 1000\n\n"
_HEARTBEAT = b": still here\n\n"


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
    last_event_id: Annotated[int | None, Header(ge=0, description="Go on after this event.")] = None,
) -> StreamingResponse:
    """Kinds: `epoch`, `execution`, `savepoint`, `operation`; `data` is JSON and names the application. Numbers rise.
    A client that reconnects with `Last-Event-ID` gets what it missed, as far as it is kept."""
    plane = control_plane(request)
    await asyncio.to_thread(plane.snapshots.head, name)  # 404 for an unknown application
    hub = plane.events
    # Decided before the answer begins: what happens after a client has seen its headers is never missed.
    position = hub.position(last_event_id)
    return StreamingResponse(
        _stream(hub, name, position), media_type="text/event-stream", headers={"cache-control": "no-store"}
    )


async def _stream(hub: EventHub, application: str, position: int) -> AsyncIterator[bytes]:
    yield _RETRY
    async for entry in hub.stream(application, position, HEARTBEAT_SECONDS):
        yield _HEARTBEAT if entry is None else _event(entry)


def _event(entry: JournalEntry) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (entry.id, entry.kind.encode(), entry.data)
