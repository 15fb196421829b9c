"""Tokens, sessions of browsers, and links with which browsers sign in."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, String
from sqlalchemy.orm import Mapped, mapped_column

from epochal.service.catalog.models.base import Base, Json


class Token(Base):
    """``name`` is the full one, as an application's. ``roles``: by name of project, which is ``project`` alone."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    project: Mapped[str] = mapped_column(String(20), default="default", server_default="default")
    roles: Mapped[Json]
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    expires_at: Mapped[datetime | None]


class RevokedToken(Base):
    """Id of a token that was deleted or replaced. Tokens with this id are never accepted again."""

    __tablename__ = "revoked_tokens"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    revoked_at: Mapped[datetime]
    revoked_by: Mapped[str] = mapped_column(String(100))


class UserSession(Base):
    """A login of a browser, by a token of the catalog (``token``: its id) or by a person's token (``claims``: those
    that determine the person). ``caller``: id of the principal.

    The rights are those of the token or of the claims at each request. The session ends at ``expires_at``, with its
    token, and when it has not been used for a while since ``last_used_at``, which is stored every minute.
    """

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    secret_sha256: Mapped[str] = mapped_column(String(64))
    caller: Mapped[str] = mapped_column(String(32), index=True)
    name: Mapped[str] = mapped_column(String(100))
    token: Mapped[str | None] = mapped_column(String(32))
    claims: Mapped[Json | None]
    address: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime]
    expires_at: Mapped[datetime]

    __table_args__ = (CheckConstraint("(token IS NULL) <> (claims IS NULL)", name="login"),)


class SessionLink(Base):
    """A link with which a browser signs in once, without a token: ``token`` or ``claims`` are those of the session that
    it creates, which ends at ``session_expires_at`` at the latest.

    ``caller``: id of the principal that created the link. ``session``: the session that created it, without which it is
    not valid; null if it was created with a token. A used link is deleted.
    """

    __tablename__ = "session_links"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    code_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    caller: Mapped[str] = mapped_column(String(32), index=True)
    token: Mapped[str | None] = mapped_column(String(32))
    claims: Mapped[Json | None]
    session: Mapped[str | None] = mapped_column(String(32))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    session_expires_at: Mapped[datetime | None]

    __table_args__ = (CheckConstraint("(token IS NULL) <> (claims IS NULL)", name="login"),)
