"""A login at an identity provider that a browser has begun."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import asdict, dataclass

from epochal.wire.sessions import CONSOLE_PATH

_RETURN_TO = re.compile(CONSOLE_PATH)


def is_console_path(path: str) -> bool:
    return _RETURN_TO.fullmatch(path) is not None


@dataclass(frozen=True)
class LoginAttempt:
    """State of a login that the browser keeps in a cookie while the person logs in at the provider."""

    state: str
    nonce: str
    verifier: str
    return_to: str

    @property
    def text(self) -> str:
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def parse(cls, text: str | None) -> LoginAttempt | None:
        try:
            fields = json.loads(base64.b64decode((text or "").encode(), b"-_", validate=True))
            attempt = cls(**{name: str(value) for name, value in fields.items()})
        except (ValueError, TypeError, AttributeError, RecursionError, binascii.Error):
            return None
        return attempt if is_console_path(attempt.return_to) else None
