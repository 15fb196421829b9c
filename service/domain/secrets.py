"""Tokens: 256 random bits, stored as their SHA-256 (random enough that a slow hash would add nothing)."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from epochal.wire.internal_api import new_driver_token

_USER = re.compile(r"ept_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")
_SESSION = re.compile(r"eps_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")
_CODE = re.compile(r"epc_[A-Za-z0-9_-]{32}")
_DRIVER = re.compile(r"epd_([0-9a-f]{32})\.([0-9]{1,9})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True)
class UserToken:
    """A token as its bearer holds it: the id of the catalog's row, and the secret."""

    id: str
    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def make(cls, id: str) -> UserToken:
        return cls(id, f"ept_{id}_{secrets.token_urlsafe(32)}")

    @classmethod
    def parse(cls, text: str) -> UserToken | None:
        match = _USER.fullmatch(text)
        return None if match is None else cls(match[1], text)


@dataclass(frozen=True)
class SessionSecret:
    """The value of a session's cookie: the id of the catalog's row, and the secret."""

    id: str
    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def csrf_token(self) -> str:
        """Token that pages send with requests that change something. It is derived from the secret, and does not
        reveal it."""
        return hmac.digest(self.text.encode(), b"csrf", hashlib.sha256).hex()

    @classmethod
    def make(cls, id: str) -> SessionSecret:
        return cls(id, f"eps_{id}_{secrets.token_urlsafe(32)}")

    @classmethod
    def parse(cls, text: str) -> SessionSecret | None:
        match = _SESSION.fullmatch(text)
        return None if match is None else cls(match[1], text)


@dataclass(frozen=True)
class SessionCode:
    """The code of a link with which a browser signs in once: 192 random bits, short enough for a line of a terminal
    with the URL. The catalog finds it by its SHA-256."""

    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def make(cls) -> SessionCode:
        return cls(f"epc_{secrets.token_urlsafe(24)}")

    @classmethod
    def parse(cls, text: str) -> SessionCode | None:
        return None if _CODE.fullmatch(text) is None else cls(text)


@dataclass(frozen=True)
class DriverToken:
    """A token for one execution and attempt, accepted by ``/internal`` only."""

    execution: str
    attempt: int
    text: str = field(repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def make(cls, execution: str, attempt: int) -> DriverToken:
        return cls(execution, attempt, new_driver_token(execution, attempt))

    @classmethod
    def parse(cls, text: str) -> DriverToken | None:
        match = _DRIVER.fullmatch(text)
        return None if match is None else cls(match[1], int(match[2]), text)


def same(left: str, right: str) -> bool:
    """Return whether two digests are equal, in constant time."""
    return hmac.compare_digest(left.encode(), right.encode())


def signature(secret: str, seconds: int, body: bytes) -> str:
    """The value of the header ``Epochal-Signature``, in the form used by other webhooks. ``seconds``: Unix time of the
    delivery."""
    digest = hmac.new(secret.encode(), b"%d." % seconds + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={digest}"
