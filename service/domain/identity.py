"""People known to an identity provider (OpenID Connect): its configuration, and the evaluation of claims."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from epochal.errors import OptionError, Unauthenticated
from epochal.service.domain.addresses import check_encrypted
from epochal.service.domain.permissions import Principal
from epochal.wire.tokens import Role

_LONGEST_NAME = 100
"""Maximum length of the creator's name in the catalog."""
_LONGEST_SUBJECT = 255
_LONGEST_PROVIDER = 40
_MOST_GROUPS = 10_000

Short = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_PROVIDER, pattern=r"^[!-~]+$")]


class OidcSettings(BaseModel):
    """Settings of an identity provider, in the file given by ``epochal up --oidc``.

    ``audience``: required audience of tokens. ``roles``: roles by project, for each value of the claim ``roles_claim``.
    ``name``: name of the provider, shown beside people's names in the audit log; by default its host. ``name_claim``:
    claim with the person's displayed name; by default the provider's unique identifier. ``keys``: URL of its public
    keys, if not from its discovery document. ``authority``: file with the certificates to trust. ``client``: id of the
    client for logins in browsers, whose ID tokens are then accepted for sessions, with its secret in
    ``client_secret_file``, if it has one, and the requested ``scopes``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str
    audience: str = Field(min_length=1)
    roles_claim: str = Field("groups", min_length=1)
    roles: dict[str, dict[str, Role]]
    name: Short | None = None
    name_claim: str = Field("sub", min_length=1)
    keys: str | None = None
    authority: Path | None = None
    client: str | None = Field(None, min_length=1)
    client_secret_file: Path | None = None
    scopes: str = Field("openid", pattern=r"^[!-~]+( [!-~]+)*$")

    @field_validator("issuer", "keys")
    @classmethod
    def _check_encrypted_keys(cls, url: str | None) -> str | None:
        if url is not None:
            check_encrypted(url)
        return url

    @model_validator(mode="after")
    def _has_a_short_name(self) -> OidcSettings:
        if len(self.provider) > _LONGEST_PROVIDER:
            raise ValueError(f"the issuer's host is long: give it a name of at most {_LONGEST_PROVIDER} characters")
        return self

    @property
    def audiences(self) -> tuple[str, ...]:
        """Accepted audiences of the tokens of sessions."""
        return (self.audience,) if self.client is None else (self.audience, self.client)

    @property
    def provider(self) -> str:
        return self.name or urlsplit(self.issuer).hostname or ""


def read_oidc_settings(path: Path) -> OidcSettings:
    """The settings in a file (JSON). Raises ``OptionError`` naming the field."""
    try:
        return OidcSettings.model_validate_json(path.read_bytes())
    except OSError as error:
        raise OptionError(f"--oidc: {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the document"
        raise OptionError(f"--oidc: {path}: {field}: {first['msg'].removeprefix('Value error, ')}.") from None


def person_of(claims: Mapping[str, Any], settings: OidcSettings) -> Principal:
    """The person described by the claims of a valid token, with the roles of its groups.

    Raises ``Unauthenticated`` for claims of another form.
    """
    subject, called = claims.get("sub"), claims.get(settings.name_claim)
    for name, value in (("sub", subject), (settings.name_claim, called)):
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_SUBJECT or not value.isprintable():
            raise Unauthenticated(f"Invalid token: its claim {name!r} is not a name.")
    # Of the unique identifier, since displayed names may be reassigned.
    digest = hashlib.sha256(f"{settings.issuer}\n{subject}".encode()).hexdigest()
    return Principal(
        id=f"oidc_{digest[:26]}",
        name=_bounded(str(called), f" ({settings.provider})", digest),
        roles=_roles(_groups(claims.get(settings.roles_claim, ()), settings.roles_claim), settings),
        person=True,
    )


def _bounded(name: str, provider: str, digest: str) -> str:
    room = _LONGEST_NAME - len(provider)
    if len(name) > room:
        name = f"{name[: room - 10]}~{digest[:8]}"
    return name + provider


def _groups(value: object, claim: str) -> list[str]:
    groups = [value] if isinstance(value, str) else value
    if not isinstance(groups, (list, tuple)) or len(groups) > _MOST_GROUPS:
        raise Unauthenticated(f"Invalid token: its claim {claim!r} is not a list of names.")
    if not all(isinstance(group, str) for group in groups):
        raise Unauthenticated(f"Invalid token: its claim {claim!r} is not a list of names.")
    return list(groups)


def _roles(groups: list[str], settings: OidcSettings) -> dict[str, Role]:
    """The highest role of each project."""
    roles: dict[str, Role] = {}
    for group in groups:
        for project, role in settings.roles.get(group, {}).items():
            if project not in roles or role.includes(roles[project]):
                roles[project] = role
    return roles
