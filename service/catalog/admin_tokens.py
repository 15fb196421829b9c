"""The first token: made when there is none, written to a file that only its owner can read."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import EnvironmentProblem
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import RevokedToken, Token
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.secrets import UserToken, same
from epochal.wire.scopes import Scope

logger = logging.getLogger(__name__)

_NAME = "admin"


class AdminTokenFile:
    """The file (mode 0600) from which the command line on this machine takes its token.

    It is replaced in two steps around the catalog's transaction, so that whenever the process ends, either the file or
    the draft beside it holds a token that the catalog knows; :func:`ensure_admin_token` completes what was interrupted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._draft = path.with_name(path.name + ".next")

    def read(self) -> UserToken | None:
        """``None``: there is no file. Raises ``EnvironmentProblem`` when others can read it or it holds no token."""
        return _read(self.path)

    def read_draft(self) -> UserToken | None:
        try:
            return _read(self._draft)
        except EnvironmentProblem:
            return None  # Not completely written: then the catalog's transaction was not committed either.

    def prepare(self, token: UserToken) -> None:
        """Make the draft durable. Call it before the catalog's transaction commits. Raises ``EnvironmentProblem``."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._draft.unlink(missing_ok=True)
            descriptor = os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(token.text + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise EnvironmentProblem(f"{self._draft} cannot be written: {error.strerror}.") from error

    def replace(self) -> None:
        """The draft becomes the file. Call it after the catalog's transaction."""
        self._draft.replace(self.path)

    def discard(self) -> None:
        self._draft.unlink(missing_ok=True)


def ensure_admin_token(database: Database, path: Path) -> None:
    """Seed the catalog with a token of scope admin, and the file ``path`` (mode 0600) with its text.

    The token in a file that is there is seeded when the catalog has never known it (the catalog may be a new one): who
    can write the file owns the data directory. One that was revoked stays revoked, which is logged. Raises
    ``EnvironmentProblem`` when others can read the file, or when it holds something else.
    """
    file = AdminTokenFile(path)
    with database.writing() as session:
        draft = file.read_draft()
        if draft is not None and _known(session, draft):
            file.replace()
        file.discard()
        token = file.read()
        if token is None:
            token = UserToken.make(new_id())
            file.prepare(token)
            file.replace()
        elif _known(session, token):
            return
        elif session.get(RevokedToken, token.id) is not None:
            logger.warning(
                "the token in %s was revoked and stays revoked; for a new one, remove the file and start again",
                path,
            )
            return
        elif session.get(Token, token.id) is not None:
            raise EnvironmentProblem(f"{path} was changed; remove it, and a new token is made.")
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
    logger.info("the admin token is in %s", path)


def _known(session: Session, token: UserToken) -> bool:
    row = session.get(Token, token.id)
    return row is not None and same(row.secret_sha256, token.sha256)


def _read(path: Path) -> UserToken | None:
    if not path.exists():
        return None
    if path.stat().st_mode & 0o077:
        raise EnvironmentProblem(
            f"{path} can be read by others; run chmod 600 on it, and make a new token if in doubt."
        )
    token = UserToken.parse(path.read_text().strip())
    if token is None:
        raise EnvironmentProblem(f"{path} does not hold a token; remove it, and a new one is made.")
    return token
