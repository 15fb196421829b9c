"""Authentication of people by tokens of an identity provider (OpenID Connect)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from epochal.errors import IssuerUnavailable
from epochal.service.domain.identity import OidcSettings, person_of
from epochal.service.domain.logins import VerifiedLogin, stored_claims
from epochal.service.domain.permissions import Principal
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

    def identity(self, token: str) -> tuple[Principal, datetime]:
        """The principal, and the expiry of the token. Raises ``Unauthenticated``; ``IssuerUnavailable`` while the
        provider does not return its keys."""
        claims = self._tokens.claims(token)
        return person_of(claims, self._settings), _expiry(claims)

    def login(self, token: str) -> VerifiedLogin:
        """Like :meth:`identity`, for a session."""
        claims = self._tokens.claims(token)
        stored = stored_claims(claims, self._settings.audience, self._settings)
        return VerifiedLogin(person_of(claims, self._settings), None, stored, _expiry(claims))

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


def _discovered(issuer: str, document: Callable[[str], dict[str, Any]]) -> str:
    """The URL of the provider's keys. Raises ``OSError`` and ``ValueError``."""
    found = document(issuer.rstrip("/") + _DISCOVERY)
    if found.get("issuer") != issuer:
        raise ValueError(f"its discovery document is of another issuer, {found.get('issuer')!r}")
    keys = found.get("jwks_uri")
    if not isinstance(keys, str):
        raise ValueError("its discovery document has no `jwks_uri`")
    if keys.lower().startswith("http:") and not issuer.lower().startswith("http:"):
        raise ValueError(
            "its discovery document refers to keys on this machine, which is invalid for a provider with https"
        )
    return keys
