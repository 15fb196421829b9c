"""Tokens of users and drivers, and the first admin token: read from a file, or created and written to one."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from epochal.errors import EnvironmentProblem, Fenced, LauncherUnavailable, NameTaken, NotFound, Unauthenticated
from epochal.service.catalog.database import Database
from epochal.service.catalog.leases import LockKey, transaction_lock
from epochal.service.catalog.models import Attempt, Execution, RevokedToken, SessionLink, Token, UserSession
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import now
from epochal.service.domain.executions import DriverName
from epochal.service.domain.identifiers import new_id
from epochal.service.domain.pages import PageRequest, Part
from epochal.service.domain.secrets import UserToken, same
from epochal.wire.projects import DEFAULT_PROJECT, local_name
from epochal.wire.tokens import Role, TokenAnswer


class TokenRepository:
    def __init__(self, session: Session) -> None:
        self._session = session

    def check_free(self, name: str) -> None:
        if self._session.scalars(select(Token.id).where(Token.name == name)).first() is not None:
            raise NameTaken(f"There is a token {local_name(name)!r} already; choose another name.")

    def add(self, token: Token) -> None:
        self._session.add(token)
        self._session.flush()

    def find(self, id: str) -> Token | None:
        return self._session.get(Token, id)

    def driver_token(self, execution: str, number: int) -> str | None:
        """Hash of the token of the attempt's driver; ``None`` if it has none, or the attempt does not exist."""
        row = self._session.get(Attempt, (execution, number))
        return None if row is None else row.token_sha256

    def check_runs(self, execution: str, number: int) -> None:
        """Raises ``Fenced`` if the attempt is over or does not exist."""
        running = select(Attempt.number).join(Execution, Execution.id == Attempt.execution)
        mine = Attempt.execution == execution, Attempt.number == number, Execution.attempt == number
        if self._session.scalar(running.where(*mine, Attempt.state == "running", Execution.ended_at.is_(None))) is None:
            raise Fenced(f"Attempt {number} of execution {execution} is over. This process must stop.")

    def assign_to_driver(self, execution: str, number: int, process: str, token_sha256: str) -> None:
        """Assign a token to the driver of an attempt. ``process``: the authenticated identity of the caller.

        Raises ``NotFound``; ``Fenced`` if the attempt is over or its driver has begun with another token;
        ``Unauthenticated`` if the caller is not its driver; ``LauncherUnavailable`` until its driver is recorded.
        """
        row = self._session.get(Attempt, (execution, number), with_for_update=True)
        if row is None:
            raise NotFound("There is no such execution and attempt.")
        if row.state != "running" or (row.begun_at is not None and row.token_sha256 != token_sha256):
            raise Fenced(f"Attempt {number} of execution {execution} is over, or another driver has begun it.")
        if row.process is None:
            raise LauncherUnavailable("The control plane has not recorded yet which driver it launched. Retry.")
        if row.process != process:
            raise Unauthenticated(f"The caller is not the driver of attempt {number} of execution {execution}.")
        row.token_sha256 = token_sha256

    def attempt_of(self, process: str) -> DriverName | None:
        """The running attempt whose recorded driver is ``process``."""
        found = self._session.execute(
            select(Attempt.execution, Attempt.number)
            .join(Execution, Execution.id == Attempt.execution)
            .where(Execution.state.in_(("starting", "running", "stopping")))
            .where(Attempt.state == "running", Attempt.process == process)
        ).first()
        return None if found is None else DriverName(found.execution, found.number)

    def get(self, id: str, project: str) -> Token:
        """The token, locked until the transaction ends. Raises ``NotFound``, also for tokens of other projects."""
        row = self._session.get(Token, id, with_for_update=True)
        if row is None or row.project != project:
            raise NotFound(f"There is no token {id!r}.")
        return row

    def page(self, page: PageRequest, project: str) -> Part:
        """Ordered by name."""
        return paginate(self._session, select(Token).where(Token.project == project), page, [Token.name])

    def revoke(self, row: Token, by: str) -> None:
        """Delete the token with its sessions and links, and record its id, so that it is not seeded again from a
        file."""
        self._session.execute(delete(SessionLink).where(SessionLink.token == row.id))
        self._session.execute(delete(UserSession).where(UserSession.token == row.id))
        self._session.add(RevokedToken(id=row.id, name=row.name, revoked_at=now(), revoked_by=by))
        self._session.delete(row)
        self._session.flush()


def roles_of(row: Token) -> dict[str, Role]:
    """Roles by project name."""
    return {project: Role(role) for project, role in row.roles.items()}


def token_answer(row: Token) -> TokenAnswer:
    return TokenAnswer(
        id=row.id,
        name=local_name(row.name),
        project=row.project,
        roles=roles_of(row),
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


logger = logging.getLogger(__name__)

_NAME = "admin"


class AdminTokenFile:
    """The file (mode 0600) from which the command line on this machine reads its token.

    It is replaced in two steps around the catalog's transaction. After a crash, either the file or the draft beside it
    contains a token that is in the catalog; :func:`ensure_admin_token` completes an interrupted replacement.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._draft = path.with_name(path.name + ".next")

    def read(self) -> UserToken | None:
        """``None`` if the file does not exist. Raises ``EnvironmentProblem`` if others can read it or it contains no
        token."""
        return _read(self.path)

    def read_draft(self) -> UserToken | None:
        try:
            return _read(self._draft)
        except EnvironmentProblem:
            return None  # incomplete, so the catalog's transaction was not committed

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
        """Replace the file by the draft. Call it after the catalog's transaction."""
        self._draft.replace(self.path)

    def discard(self) -> None:
        self._draft.unlink(missing_ok=True)


def ensure_admin_token(database: Database, path: Path) -> None:
    """Seed the catalog with a token of role admin, and write it to the file ``path`` (mode 0600).

    The token of an existing file is seeded if the catalog has never known it (the catalog may be new): writing the file
    requires ownership of the data directory. A revoked token stays revoked, which is logged. Raises
    ``EnvironmentProblem`` if others can read the file, or if it contains something else.
    """
    file = AdminTokenFile(path)
    with database.writing() as session:
        transaction_lock(session, LockKey.ADMIN_TOKEN)
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
        added = _seed(session, token, path, again, f"{path} was changed; remove it, and a new token is created.")
    if added:
        logger.info("the admin token is in %s", path)


def seed_given_token(database: Database, path: Path) -> None:
    """Seed the catalog with the token in ``path``, with role admin. The file is only read.

    A revoked token stays revoked, which is logged. Raises ``EnvironmentProblem``, as :func:`read_given_token`.
    """
    token = read_given_token(path)
    with database.writing() as session:
        transaction_lock(session, LockKey.ADMIN_TOKEN)
        again = "put another one there and start again"
        _seed(session, token, path, again, (f"{path} contains another secret than before for the same token; {again}."))


def read_given_token(path: Path) -> UserToken:
    """Raises ``EnvironmentProblem`` if the file is missing, contains something else, or is readable by every user."""
    try:
        text, mode = path.read_text().strip(), path.stat().st_mode
    except OSError as error:
        raise EnvironmentProblem(
            f"The admin token cannot be read from {path}, which EPOCHAL_ADMIN_TOKEN_FILE names: {error.strerror}."
        ) from error
    if mode & 0o007:
        raise EnvironmentProblem(
            f"{path}, which EPOCHAL_ADMIN_TOKEN_FILE names, is readable by every user; run chmod o-rwx on it (for "
            "the volume of a Secret: defaultMode: 0440), and replace the token if it may have been read."
        )
    token = UserToken.parse(text)
    if token is None:
        raise EnvironmentProblem(
            f"{path}, which EPOCHAL_ADMIN_TOKEN_FILE names, does not contain a token: ept_, 32 hexadecimal digits,"
            " _, and 43 random letters, digits, dashes or underscores."
        )
    return token


def _seed(session: Session, token: UserToken, path: Path, again: str, changed: str) -> bool:
    """Return whether the token was new. Raises ``EnvironmentProblem`` with the text ``changed``."""
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
            roles={DEFAULT_PROJECT: Role.ADMIN.value},
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
            f"{path} can be read by others; run chmod 600 on it, and replace the token if it may have been read."
        )
    token = UserToken.parse(path.read_text().strip())
    if token is None:
        raise EnvironmentProblem(f"{path} does not contain a token; remove it, and a new one is created.")
    return token
