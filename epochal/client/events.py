"""Events: streamed as server-sent events, or delivered to webhooks."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Iterator, Sequence

from epochal.client.exchanges import path
from epochal.client.models import Event, NewWebhook, Webhook
from epochal.client.transport import Transport
from epochal.errors import CatalogUnavailable, Unauthenticated
from epochal.wire.bodies import read

RECONNECT_SECONDS = 1.0
# Number of consecutive connections without an event after which the control plane counts as unavailable.
FRUITLESS_CONNECTIONS = 10


def follow_events(
    transport: Transport, path: str, last_event_id: str | None, **only: Sequence[str] | None
) -> Iterator[Event]:
    """Stream the events at ``path``; ``only`` restricts kinds or applications.

    After a lost connection the stream continues after the last received event.

    Raises ``CatalogUnavailable`` if the control plane stays unavailable, ``NotFound`` for an unknown application.
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
    """Parse the lines of a stream (WHATWG HTML standard); comments and events without data are skipped."""
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


TOLERANCE_SECONDS = 300


class Webhooks:
    """``client.webhooks``, for administrators."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self, url: str, kinds: Sequence[str], *, applications: Sequence[str] | None = None, secret: str | None = None
    ) -> NewWebhook:
        """Post future events to ``url``. Only this answer contains the ``secret``.

        ``kinds``: any of ``epoch.committed``, ``epoch.aborted``, ``attempt.failed``, ``application.failed``.
        """
        body = {
            "url": url,
            "kinds": list(kinds),
            "applications": None if applications is None else list(applications),
            "secret": secret,
        }
        return read(NewWebhook, self._transport.post("/v1/webhooks", body))

    def get(self, id: str) -> Webhook:
        return read(Webhook, self._transport.get(path("webhooks", id)))

    def list(self, limit: int | None = None) -> list[Webhook]:
        return self._transport.pages("/v1/webhooks", Webhook, limit)

    def delete(self, id: str) -> None:
        """Delete a webhook and its waiting events."""
        self._transport.delete(path("webhooks", id))


def verify_signature(secret: str, signature: str, body: bytes, tolerance_seconds: float = TOLERANCE_SECONDS) -> None:
    """Verify, as a receiver, that the control plane has recently sent ``body``. ``signature``: header
    ``Epochal-Signature``. Raises ``Unauthenticated``.
    """
    parts = [part.partition("=")[::2] for part in signature.split(",")]
    times = [text for name, text in parts if name == "t" and text.isascii() and text.isdigit()]
    if len(times) != 1:
        raise Unauthenticated("The signature contains no timestamp.")
    expected = hmac.new(secret.encode(), times[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    if not any(hmac.compare_digest(expected.encode(), text.encode()) for name, text in parts if name == "v1"):
        raise Unauthenticated("The signature does not match the body and the secret.")
    if abs(time.time() - int(times[0])) > tolerance_seconds:
        raise Unauthenticated(f"The signature is older than {tolerance_seconds:g} s, as in a replayed delivery.")
