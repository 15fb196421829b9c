"""The first token: given in a file; or made when there is none, and written to a file that only its owner can read."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import EnvironmentProblem
from epochal.service.catalog.advisory import Alone, alone
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import RevokedToken, Token
from epochal.service.catalog.types import now
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.secrets import UserToken, same
from epochal.wire.tokens import Scope

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
    """Seed the catalog with a token with the role admin, and the file ``path`` (mode 0600) with its text.

    The token in a file that is there is seeded when the catalog has never known it (the catalog may be a new one): who
    can write the file owns the data directory. One that was revoked stays revoked, which is logged. Raises
    ``EnvironmentProblem`` when others can read the file, or when it holds something else.
    """
    file = AdminTokenFile(path)
    with database.writing() as session:
        alone(session, Alone.ADMIN_TOKEN)
        draft = file.read_draft()
        if draft is not None and _known(session, draft):
            file.replace()
        file.discard()
        token = file.read()
        if token is None:
            token = UserToken.make(new_id())
            file.prepare(token)
            file.replace()
        again = "remove the file and start again"
        added = _seed(session, token, path, again, f"{path} was changed; remove it, and a new token is made.")
    if added:
        logger.info("the admin token is in %s", path)


def seed_given_token(database: Database, path: Path) -> None:
    """Seed the catalog with the token in ``path``, with the role admin. The file is somebody else's, and is only read.

    One that was revoked stays revoked, which is logged. Raises ``EnvironmentProblem``, as :func:`read_given_token`.
    """
    token = read_given_token(path)
    with database.writing() as session:
        alone(session, Alone.ADMIN_TOKEN)
        again = "put another one there and start again"
        _seed(session, token, path, again, f"{path} holds another secret than before for the same token; {again}.")


def read_given_token(path: Path) -> UserToken:
    """Raises ``EnvironmentProblem`` when the file is not there, holds something else, or can be read by every user."""
    try:
        text, mode = path.read_text().strip(), path.stat().st_mode
    except OSError as error:
        raise EnvironmentProblem(
            f"The admin token cannot be read from {path}, which EPOCHAL_ADMIN_TOKEN_FILE names: {error.strerror}."
        ) from error
    if mode & 0o007:
        raise EnvironmentProblem(
            f"{path}, which EPOCHAL_ADMIN_TOKEN_FILE names, can be read by every user; run chmod o-rwx on it (of a "
            "Secret's volume: defaultMode: 0440), and put a new token there if in doubt."
        )
    token = UserToken.parse(text)
    if token is None:
        raise EnvironmentProblem(
            f"{path}, which EPOCHAL_ADMIN_TOKEN_FILE names, does not hold a token: ept_, 32 hexadecimal digits, _, and "
            "43 letters, digits, dashes or underscores, all of them random."
        )
    return token


def _seed(session: Session, token: UserToken, path: Path, again: str, changed: str) -> bool:
    """Whether it was not known. Raises ``EnvironmentProblem`` with the text ``changed``."""
    if _known(session, token):
        return False
    if session.get(RevokedToken, token.id) is not None:
        logger.warning("the token in %s was revoked and stays revoked; for a new one, %s", path, again)
        return False
    if session.get(Token, token.id) is not None:
        raise EnvironmentProblem(changed)
    host = socket.gethostname()[:40]
    names = (_NAME, f"{_NAME}-{host}", f"{_NAME}-{host}-{token.id[-6:]}")
    taken = set(session.scalars(select(Token.name).where(Token.name.in_(names))))
    session.add(
        Token(
            id=token.id,
            name=next(name for name in names if name not in taken),
            scope=Scope.ADMIN.value,
            secret_sha256=token.sha256,
            created_at=now(),
            created_by="epochal",
        )
    )
    return True


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
