"""People whom an identity provider knows (OpenID Connect): how it is configured, and who somebody is by its claims."""

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
"""Of who has made something, in the catalog."""
_LONGEST_SUBJECT = 255
_LONGEST_PROVIDER = 40
_MOST_GROUPS = 10_000

Short = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_PROVIDER, pattern=r"^[!-~]+$")]


class OidcSettings(BaseModel):
    """What an operator says of an identity provider, in the file that ``epochal up --oidc`` names.

    ``audience``: whom its tokens have to be made for. ``roles``: by value of the claim ``roles_claim``, the role in
    each project. ``name``: the provider's, beside people's names in the audit log; its host, where there is none.
    ``name_claim``: what people are called there, by default what the provider never gives to anybody else.
    ``keys``: the URL of its public keys, where its discovery document is not to say it. ``authority``: a file with the
    certificates to trust there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str
    audience: str = Field(min_length=1)
    roles_claim: str = Field("groups", min_length=1)
    roles: dict[str, dict[str, Role]]
    name: Short = ""
    name_claim: str = Field("sub", min_length=1)
    keys: str | None = None
    authority: Path | None = None

    @field_validator("issuer", "keys")
    @classmethod
    def _nobody_else_answers(cls, url: str | None) -> str | None:
        if url is not None:
            check_encrypted(url)
        return url

    @model_validator(mode="after")
    def _has_a_short_name(self) -> OidcSettings:
        if len(self.provider) > _LONGEST_PROVIDER:
            raise ValueError(f"the issuer's host is long: give it a name of at most {_LONGEST_PROVIDER} characters")
        return self

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
    """Who it is, by the claims of a token that is good; somebody without a group that has a role has none.

    Raises ``Unauthenticated`` for claims of another shape than people's.
    """
    subject, called = claims.get("sub"), claims.get(settings.name_claim)
    for name, value in (("sub", subject), (settings.name_claim, called)):
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_SUBJECT or not value.isprintable():
            raise Unauthenticated(f"The token does not say who it was made for: its claim {name!r} is no name.")
    # Of anybody's own, since what people are called may be given to somebody else.
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
        raise Unauthenticated(f"The token's claim {claim!r} is no list of names.")
    if not all(isinstance(group, str) for group in groups):
        raise Unauthenticated(f"The token's claim {claim!r} is no list of names.")
    return list(groups)


def _roles(groups: list[str], settings: OidcSettings) -> dict[str, Role]:
    """Of each project the role that includes most."""
    roles: dict[str, Role] = {}
    for group in groups:
        for project, role in settings.roles.get(group, {}).items():
            if project not in roles or role.includes(roles[project]):
                roles[project] = role
    return roles
