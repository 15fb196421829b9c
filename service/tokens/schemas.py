from __future__ import annotations

from datetime import datetime

from pydantic import Field

from epochal.service.schema import Answer, Body, Name, UtcTime
from epochal.service.security import Scope


class CreateToken(Body):
    name: Name
    scope: Scope
    expires_at: UtcTime | None = None


class TokenAnswer(Answer):
    id: str
    name: str
    scope: Scope
    created_at: datetime
    expires_at: datetime | None


class NewTokenAnswer(TokenAnswer):
    token: str | None = Field(description="The token itself, said once: a repeated request answers null.")
