"""Sessions of browsers."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from epochal.wire.bodies import Answer, Body, Open
from epochal.wire.tokens import Role

CSRF_HEADER = "X-CSRF-Token"


class SessionAnswer(Answer):
    """The caller, and its session. Without a session (the request has a token, or authentication is off) the fields
    ``id``, ``csrf_token`` and the times are null."""

    name: str = Field(description="Name of the token, or of the person.")
    person: bool = Field(description="The caller is a person known to the identity provider, not a token.")
    roles: dict[str, Open[Role]] = Field(
        description="Roles by project. An administrator of `default` is an administrator of every project."
    )
    id: str | None = None
    csrf_token: str | None = Field(
        default=None,
        description=f"Value of the header `{CSRF_HEADER}`, which every POST, PUT, PATCH and DELETE with the cookie of "
        "this session requires.",
    )
    created_at: datetime | None = None
    expires_at: datetime | None = Field(default=None, description="End of the session, unless it ends earlier.")
    idle_seconds: float | None = Field(default=None, description="The session ends if it is not used for this time.")


class LoginMethods(Answer):
    """Ways to log in."""

    authentication: bool = Field(description="False: requests need neither a token nor a session.")
    provider: str | None = Field(description="Name of the identity provider of GET /v1/session/login; null: none.")


CONSOLE_PATH = r"/console/[!-\[\]-~]{0,2000}"
"""Regular expression: visible ASCII without backslashes, never another site."""
LINK_SECONDS = 60.0
LONGEST_LINK_SECONDS = 3600.0


class CreateSessionLink(Body):
    seconds: float = Field(
        default=LINK_SECONDS, gt=0, le=LONGEST_LINK_SECONDS, description="Time in which the link can be used."
    )
    path: str = Field(
        default="/console/",
        pattern=f"^{CONSOLE_PATH}$",
        description="Path of the console that the link opens, with or without a fragment.",
        examples=["/console/applications/flights"],
    )


class SessionLinkAnswer(Answer):
    """A link with which a browser signs in once."""

    code: str = Field(description="Token for one POST /v1/session, in the header `Authorization: Bearer`.")
    expires_at: datetime
    url: str = Field(
        description="Page of the console, with the code in the fragment. It begins with the setting `public_url` or, "
        "without one, with the address of this request."
    )


class ListedSession(Answer):
    """A session that has not ended. ``last_used_at`` is stored once a minute."""

    id: str
    name: str = Field(description="Name of the token, or of the person.")
    person: bool
    address: str | None = Field(description="Address from which the session was created.")
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime
    current: bool = Field(description="It is the session of this request.")
