"""Verification of signed tokens (JWT, RFC 7519) with the keys that their issuer publishes (JWKS, RFC 7517)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from epochal.errors import EpochalError, IssuerUnavailable, Unauthenticated

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS = (*_RSA, "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric algorithms only: a public key cannot sign. None of them takes a secret, for which a public key could be
misused."""
_KINDS = ("RSA", "EC", "OKP")
KEPT_SECONDS = 300.0
"""Maximum time for which a key that the issuer has withdrawn is still accepted."""
OUTAGE_SECONDS = 3600.0
"""Maximum time for which the issuer's keys are accepted while the issuer is unavailable."""
AGAIN_SECONDS = 10.0
"""Minimum interval between two requests to the issuer. Any client may send tokens that name unknown keys, and an issuer
that does not answer must not be called for each of them."""
LEEWAY_SECONDS = 10.0
LONGEST_TOKEN = 16_384


@dataclass(frozen=True)
class Keys:
    """Keys that an issuer has published, by name and algorithm, and the issuer's name."""

    issuer: str
    by_name: Mapping[str, Mapping[str, jwt.PyJWK]]

    @classmethod
    def of(cls, issuer: str, document: Mapping[str, Any]) -> Keys:
        """``document``: RFC 7517. Keys that are not for signatures, or of an unknown kind, are ignored: tokens signed
        with them are refused. Raises ``ValueError`` for a document without a list of keys."""
        items = document.get("keys")
        if not isinstance(items, list):
            raise ValueError("the document of its keys has no list `keys`")
        found: dict[str, dict[str, jwt.PyJWK]] = {}
        for item in items:
            if (
                isinstance(item, dict)
                and item.get("kty") in _KINDS
                and item.get("use", "sig") == "sig"
                and isinstance(item.get("kid"), str)
                and isinstance(item.get("alg", ""), str)
            ):
                found.setdefault(item["kid"], {}).update(_by_algorithm(item))
        return cls(issuer, found)


def _by_algorithm(item: dict[str, Any]) -> dict[str, jwt.PyJWK]:
    # A key that names no algorithm is valid for all of its kind; a curve has only one.
    names = _RSA if item["kty"] == "RSA" and not item.get("alg") else (None,)
    found = {}
    for name in names:
        try:
            key = jwt.PyJWK(item, algorithm=name)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if key.algorithm_name in ALGORITHMS:
            found[key.algorithm_name] = key
    return found


class SignedTokens:
    """Verifies tokens. Thread-safe.

    ``keys`` requests the keys from the issuer; it may block for seconds, and raises an ``EpochalError`` if the issuer
    does not answer. One thread sends the request; the others wait only if they need its result. While a request is
    repeated after a failure, they do not wait: they raise that failure.
    """

    def __init__(self, audience: str, keys: Callable[[], Keys], clock: Callable[[], float] = time.monotonic) -> None:
        self._audience = audience
        self._ask = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._keys = Keys("", {})
        self._taken: float | None = None
        self._asked: float | None = None
        self._asking: threading.Event | None = None
        self._failure: EpochalError | None = None

    def claims(self, token: str) -> dict[str, Any]:
        """Claims of a valid token. Raises ``Unauthenticated`` for any other token, and what ``keys`` raises."""
        if len(token) > LONGEST_TOKEN:
            raise Unauthenticated("The token exceeds the maximum length.")
        try:
            header = jwt.get_unverified_header(token)
            issuer, key = self._key(header.get("kid"), header.get("alg"))
            return dict(
                jwt.decode(
                    token,
                    key,
                    algorithms=[key.algorithm_name],
                    audience=self._audience,
                    issuer=issuer,
                    leeway=LEEWAY_SECONDS,
                    options={"require": ["exp", "iat", "sub", "iss", "aud"]},
                )
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("The token has expired; fetch a new one.") from None
        except jwt.InvalidAudienceError:
            raise Unauthenticated(f"The token was not issued for {self._audience!r}.") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            # The library does not check the types of some claims.
            raise Unauthenticated(f"The token is not valid ({type(error).__name__}).") from None

    def _key(self, name: object, algorithm: object) -> tuple[str, jwt.PyJWK]:
        if not isinstance(name, str):
            raise Unauthenticated("The token does not name its signing key.")
        with self._lock:
            asking, own = self._asking, False
            if asking is None and self._is_to_be_asked(name):
                asking, own = threading.Event(), True
                self._asking = asking
            usable = name in self._keys.by_name and self._is_believed()
            failing = self._failure is not None
        if asking is not None and own:
            self._put_the_question(asking)
        elif asking is not None and not usable and not failing:
            asking.wait()
        with self._lock:
            return self._found(name, algorithm)

    def _is_to_be_asked(self, name: str) -> bool:
        now = self._clock()
        if self._asked is not None and now - self._asked <= AGAIN_SECONDS:
            return False
        return self._taken is None or now - self._taken > KEPT_SECONDS or name not in self._keys.by_name

    def _is_believed(self) -> bool:
        return self._taken is not None and self._clock() - self._taken <= OUTAGE_SECONDS

    def _put_the_question(self, asking: threading.Event) -> None:
        """Request the keys. Called without the lock, so that threads that do not need the result never wait."""
        found: Keys | None = None
        failure: EpochalError | None = None
        try:
            found = self._ask()
        except EpochalError as error:
            failure = error
        except Exception as error:
            failure = IssuerUnavailable(f"The keys of the issuer could not be read: {type(error).__name__}: {error}.")
            raise
        finally:
            with self._lock:
                self._asked, self._failure, self._asking = self._clock(), failure, None
                if found is not None:
                    self._keys, self._taken = found, self._asked
            asking.set()

    def _found(self, name: str, algorithm: object) -> tuple[str, jwt.PyJWK]:
        named = self._keys.by_name.get(name)
        if self._failure is not None and (named is None or not self._is_believed()):
            # It may be a new key: the token cannot be verified, and the error says so.
            raise type(self._failure)(self._failure.message)
        if named is None:
            raise Unauthenticated("The token was signed with a key that its issuer does not publish.")
        key = named.get(algorithm) if isinstance(algorithm, str) else None
        if key is None:
            raise Unauthenticated("The token is not valid (its key is not for the algorithm that it names).")
        return self._keys.issuer, key
