"""Signatures of deliveries to webhooks: HMAC-SHA256 over the time and the body, as others make them."""

from __future__ import annotations

import hashlib
import hmac


def signature(secret: str, seconds: int, body: bytes) -> str:
    """The value of ``Epochal-Signature``. ``seconds``: Unix time of the delivery."""
    digest = hmac.new(secret.encode(), b"%d." % seconds + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"
