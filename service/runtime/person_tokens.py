"""Authentication of people by tokens of an identity provider (OpenID Connect)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from epochal.errors import IssuerUnavailable, Unauthenticated
from epochal.service.domain.identity import OidcSettings, person_of
from epochal.service.domain.logins import VerifiedLogin, stored_claims
from epochal.service.domain.permissions import Principal
from epochal.service.domain.secrets import same
from epochal.service.runtime.issuer_documents import IssuerDocuments
from epochal.service.runtime.signed_tokens import Keys, SignedTokens

_DISCOVERY = "/.well-known/openid-configuration"
_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


class PersonTokens:
    """Thread-safe; the first call, and some later ones, send requests to the provider.

    Raises ``OptionError`` if the configured authority cannot be read.
    """

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._documents = IssuerDocuments(settings.authority)
        self._tokens = SignedTokens(settings.audience, self._published)
        self._id_tokens = None if settings.client is None else SignedTokens(settings.client, self._published)

    def identity(self, token: str) -> tuple[Principal, datetime]:
        """The principal, and the expiry of the token. Raises ``Unauthenticated``; ``IssuerUnavailable`` while the
        provider does not return its keys."""
        claims = self._tokens.claims(token)
        return person_of(claims, self._settings), _expiry(claims)

    def login(self, token: str) -> VerifiedLogin:
        """Like :meth:`identity`, for a session."""
        return self._login(self._tokens.claims(token), self._settings.audience)

    def code_login(self, token: str, nonce: str) -> VerifiedLogin:
        """Like :meth:`login`, with an ID token for the client of browsers, which must contain ``nonce``."""
        client = self._settings.client
        assert client is not None
        assert self._id_tokens is not None
        claims = self._id_tokens.claims(token)
        if not same(str(claims.get("nonce", "")), nonce) or claims.get("azp", client) != client:
            raise Unauthenticated("The ID token was issued for another login. Log in again.")
        return self._login(claims, client)

    def _login(self, claims: Mapping[str, Any], audience: str) -> VerifiedLogin:
        person = person_of(claims, self._settings)
        return VerifiedLogin(person, None, stored_claims(claims, audience, self._settings), _expiry(claims))

    def _published(self) -> Keys:
        issuer = self._settings.issuer
        document = self._documents.documents()
        try:
            return Keys.of(issuer, document(self._settings.keys or _discovered(issuer, document)))
        except (OSError, ValueError) as error:
            raise IssuerUnavailable(
                f"Tokens of people cannot be verified now: the keys of the identity provider {issuer} cannot be read "
                f"({error}). The provider must be reachable from the control plane."
            ) from error


def _expiry(claims: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(min(int(claims["exp"]), _LAST), UTC)


def discovery_of(issuer: str, document: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The provider's discovery document. Raises ``OSError`` and ``ValueError``."""
    found = document(issuer.rstrip("/") + _DISCOVERY)
    if found.get("issuer") != issuer:
        raise ValueError(f"its discovery document is of another issuer, {found.get('issuer')!r}")
    return found


def _discovered(issuer: str, document: Callable[[str], dict[str, Any]]) -> str:
    """The URL of the provider's keys. Raises ``OSError`` and ``ValueError``."""
    keys = discovery_of(issuer, document).get("jwks_uri")
    if not isinstance(keys, str):
        raise ValueError("its discovery document has no `jwks_uri`")
    if keys.lower().startswith("http:") and not issuer.lower().startswith("http:"):
        raise ValueError(
            "its discovery document refers to keys on this machine, which is invalid for a provider with https"
        )
    return keys
