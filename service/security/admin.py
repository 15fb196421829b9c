"""The first token: made when there is none, written to a file that only its owner can read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sqlalchemy import select

from epochal.errors import EnvironmentProblem
from epochal.service.catalog.database import Database
from epochal.service.catalog.identifiers import new_id
from epochal.service.catalog.models import Token
from epochal.service.catalog.types import now
from epochal.service.security.scopes import Scope
from epochal.service.security.secrets import UserToken, same

logger = logging.getLogger(__name__)

_NAME = "admin"


def ensure_admin_token(database: Database, file: Path) -> None:
    """After it, ``file`` (mode 0600) holds a token of scope admin that the catalog knows.

    A file that is there is believed (its catalog may have been made anew): who can write it owns the data directory.
    Raises ``EnvironmentProblem`` when others can read it, or when it holds something else.
    """
    token = _read(file)
    with database.writing() as session:
        if token is not None:
            row = session.get(Token, token.id)
            if row is not None and same(row.secret_sha256, token.sha256):
                return
            if row is not None:
                raise EnvironmentProblem(f"{file} was changed; remove it, and a new token is made.")
        else:
            token = UserToken.make(new_id())
            _write(file, token)
        taken = session.scalars(select(Token.id).where(Token.name == _NAME)).first() is not None
        name = f"{_NAME}-{token.id[-6:]}" if taken else _NAME
        session.add(
            Token(
                id=token.id,
                name=name,
                scope=Scope.ADMIN.value,
                secret_sha256=token.sha256,
                created_at=now(),
                created_by="epochal",
            )
        )
    logger.info("the admin token is in %s", file)


def _read(file: Path) -> UserToken | None:
    if not file.exists():
        return None
    if file.stat().st_mode & 0o077:
        raise EnvironmentProblem(
            f"{file} can be read by others; run chmod 600 on it, and make a new token if in doubt."
        )
    token = UserToken.parse(file.read_text().strip())
    if token is None:
        raise EnvironmentProblem(f"{file} does not hold a token; remove it, and a new one is made.")
    return token


def _write(file: Path, token: UserToken) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(token.text + "\n")
        stream.flush()
        os.fsync(stream.fileno())
