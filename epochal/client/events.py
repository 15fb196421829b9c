"""Server-sent events, as the WHATWG HTML standard frames them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence

from epochal.client.models import Event
from epochal.client.transport import Transport
from epochal.errors import CatalogUnavailable

RECONNECT_SECONDS = 1.0
# After this many connections in a row that brought nothing, the control plane is taken to be away.
FRUITLESS_CONNECTIONS = 10


def follow_events(
    transport: Transport, path: str, last_event_id: str | None, **only: Sequence[str] | None
) -> Iterator[Event]:
    """The events at ``path``, ``only`` of these kinds or applications.

    After a lost connection it goes on behind the last event that was seen.

    Raises ``CatalogUnavailable`` when the control plane stays away, ``NotFound`` for an unknown application.
    """
    fruitless = 0
    while True:
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        fruitless += 1
        try:
            with transport.stream(path, only, headers) as response:
                for event in parse_events(response.iter_lines()):
                    last_event_id = event.id or last_event_id
                    fruitless = 0
                    yield event
        except CatalogUnavailable:
            if fruitless >= FRUITLESS_CONNECTIONS:
                raise
        time.sleep(RECONNECT_SECONDS)


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """Events from the lines of a stream; comments and events without data are left out."""
    id: str | None = None
    kind = "message"
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                content = json.loads("\n".join(data))
                yield Event(id=id, kind=kind, data=content if isinstance(content, dict) else {"value": content})
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            id = value
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
