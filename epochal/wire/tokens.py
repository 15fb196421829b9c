from __future__ import annotations

from datetime import datetime

from pydantic import Field

from epochal.wire.bodies import Answer, Body, Name, Open, UtcTime
from epochal.wire.scopes import Scope


class CreateToken(Body):
    name: Name
    scope: Scope
    expires_at: UtcTime | None = None


class TokenAnswer(Answer):
    id: str
    name: str
    scope: Open[Scope]
    created_at: datetime
    expires_at: datetime | None


class NewTokenAnswer(TokenAnswer):
    token: str | None = Field(description="The token itself, said once: a repeated request answers null.")


class RotateToken(Body):
    expires_at: UtcTime | None = Field(default=None, description="Without: as that of the token that is replaced.")


class RotatedTokenAnswer(NewTokenAnswer):
    file: str | None = Field(
        description="The admin token file of this control plane, when the old token was in it: it holds the new one."
    )
