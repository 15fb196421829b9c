"""Tokens that an issuer has signed (JWT, RFC 7519): good only with a key that the issuer publishes (JWKS, RFC 7517)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from epochal.errors import Unauthenticated

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""With a public key nobody can sign by these. None of them takes a secret, as which a public key could be used."""
_KINDS = ("RSA", "EC", "OKP")
KEPT_SECONDS = 300.0
"""So long a key that the issuer has withdrawn is still believed."""
AGAIN_SECONDS = 10.0
"""A key that is not known is asked for so often at most: anybody may send tokens that name one."""
LEEWAY_SECONDS = 10.0
LONGEST_TOKEN = 16_384


@dataclass(frozen=True)
class Keys:
    """What an issuer has published: its name, and its keys as JSON (RFC 7517)."""

    issuer: str
    document: Mapping[str, Any]


class SignedTokens:
    """``keys`` asks the issuer, and may block and raise what says that it does not answer. Safe from any thread."""

    def __init__(self, audience: str, keys: Callable[[], Keys], clock: Callable[[], float] = time.monotonic) -> None:
        self._audience = audience
        self._ask = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._issuer = ""
        self._keys: dict[str, jwt.PyJWK] = {}
        self._asked: float | None = None

    def claims(self, token: str) -> dict[str, Any]:
        """What a good token says. Raises ``Unauthenticated`` for any other one, and what ``keys`` raises."""
        if len(token) > LONGEST_TOKEN:
            raise Unauthenticated("The token is longer than any that is good.")
        try:
            name = jwt.get_unverified_header(token).get("kid")
            issuer, key = self._key(name)
            return dict(
                jwt.decode(
                    token,
                    key,
                    algorithms=ALGORITHMS,
                    audience=self._audience,
                    issuer=issuer,
                    leeway=LEEWAY_SECONDS,
                    options={"require": ["exp", "iat", "sub", "iss", "aud"]},
                )
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("The token has expired; fetch a new one.") from None
        except jwt.InvalidAudienceError:
            raise Unauthenticated(f"The token was not made for {self._audience!r}.") from None
        except (jwt.PyJWTError, ValueError) as error:
            raise Unauthenticated(f"The token is not valid ({type(error).__name__}).") from None

    def _key(self, name: object) -> tuple[str, jwt.PyJWK]:
        if not isinstance(name, str):
            raise Unauthenticated("The token does not say which key it was signed with.")
        with self._lock:  # of many callers one asks, and the others wait for what it gets
            age = None if self._asked is None else self._clock() - self._asked
            if age is None or age > KEPT_SECONDS or (name not in self._keys and age > AGAIN_SECONDS):
                self._take(self._ask())
            key = self._keys.get(name)
        if key is None:
            raise Unauthenticated("The token was signed with a key that its issuer does not publish.")
        return self._issuer, key

    def _take(self, found: Keys) -> None:
        self._issuer, self._asked = found.issuer, self._clock()
        self._keys = {}
        for item in found.document.get("keys", ()):
            if item.get("kty") in _KINDS and item.get("use", "sig") == "sig" and isinstance(item.get("kid"), str):
                try:
                    self._keys[item["kid"]] = jwt.PyJWK.from_dict(item)
                except jwt.PyJWTError:
                    continue  # of a kind that this version does not know: who is signed with it is refused
