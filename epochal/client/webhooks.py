"""Webhooks: what happens, posted to a URL. And how a receiver knows that it was the control plane."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence

from epochal.client.models import NewWebhook, Webhook
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.errors import Unauthenticated
from epochal.wire.bodies import read

TOLERANCE_SECONDS = 300


class Webhooks:
    """``client.webhooks``, for administrators."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self, url: str, kinds: Sequence[str], *, applications: Sequence[str] | None = None, secret: str | None = None
    ) -> NewWebhook:
        """What happens from now on is posted to ``url``. Its ``secret`` is in this answer only.

        ``kinds``: of ``epoch.committed``, ``epoch.aborted``, ``attempt.failed``, ``application.failed``.
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
        """With what waits to be delivered to it."""
        self._transport.delete(path("webhooks", id))


def verify(secret: str, signature: str, body: bytes, tolerance_seconds: float = TOLERANCE_SECONDS) -> None:
    """For receivers: ``body`` comes from the control plane, and not long ago. ``signature``: ``Epochal-Signature``.

    Raises ``Unauthenticated``.
    """
    parts = [part.partition("=")[::2] for part in signature.split(",")]
    times = [text for name, text in parts if name == "t" and text.isascii() and text.isdigit()]
    if len(times) != 1:
        raise Unauthenticated("The signature has no time; it is not one of Epochal's.")
    expected = hmac.new(secret.encode(), times[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    if not any(hmac.compare_digest(expected.encode(), text.encode()) for name, text in parts if name == "v1"):
        raise Unauthenticated("The signature is not that of this body with this secret.")
    if abs(time.time() - int(times[0])) > tolerance_seconds:
        raise Unauthenticated(f"The signature is older than {tolerance_seconds:g} s: somebody repeats a delivery.")
