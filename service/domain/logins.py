"""Verified tokens that sessions of browsers are created from, and the duration of these sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from epochal.errors import Unauthenticated
from epochal.service.domain.identity import OidcSettings, person_of
from epochal.service.domain.permissions import Principal
from epochal.service.domain.setting_sections import Sessions

_ISSUER, _AUDIENCE = "iss", "aud"


@dataclass(frozen=True, slots=True)
class VerifiedLogin:
    """A token, or the code of a link, that was verified now. ``token``: id of a token of the catalog; ``None`` for a
    person, with ``claims`` instead. ``expires_at``: end of the token, and of the session that created the link.
    ``link``: id of the link, which the login uses up."""

    principal: Principal
    token: str | None
    claims: Mapping[str, Any] | None
    expires_at: datetime | None
    link: str | None = None


def session_end(login: VerifiedLogin, moment: datetime, sessions: Sessions) -> datetime:
    """End of a session that begins at ``moment``: never later than that of its token."""
    latest = moment + sessions.longest
    return latest if login.expires_at is None else min(latest, login.expires_at)


def stored_claims(claims: Mapping[str, Any], audience: str, settings: OidcSettings) -> dict[str, Any]:
    """The claims that determine a person and the roles. Groups without a role are left out: there can be thousands."""
    kept = {name: claims[name] for name in ("sub", settings.name_claim) if name in claims}
    groups = claims.get(settings.roles_claim, ())
    named = [groups] if isinstance(groups, str) else groups
    return {
        **kept,
        settings.roles_claim: [group for group in named if group in settings.roles],
        _ISSUER: settings.issuer,
        _AUDIENCE: audience,
    }


def person_of_session(claims: Mapping[str, Any], settings: OidcSettings | None) -> Principal:
    """The person of stored claims, with the roles of the current settings. Raises ``Unauthenticated`` if the settings
    now have another provider or audience, or none."""
    if settings is None or claims[_ISSUER] != settings.issuer or claims[_AUDIENCE] not in settings.audiences:
        raise Unauthenticated("The identity provider of this session is no longer configured. Log in again.")
    return person_of(claims, settings)
