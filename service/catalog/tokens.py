from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from epochal.errors import Fenced, LauncherUnavailable, NameTaken, NotFound, Unauthenticated
from epochal.service.catalog.models import Attempt, Execution, RevokedToken, Token
from epochal.service.catalog.pages import paginate
from epochal.service.catalog.types import now
from epochal.service.domain.pages import PageRequest, Part
from epochal.service.domain.ports import DriverName
from epochal.wire.projects import DEFAULT_PROJECT, local_name
from epochal.wire.tokens import Role, Scope, TokenAnswer


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
        """The hash of the token that the attempt's driver has; ``None``: there is none, or no such attempt."""
        row = self._session.get(Attempt, (execution, number))
        return None if row is None else row.token_sha256

    def check_runs(self, execution: str, number: int) -> None:
        """Raises ``Fenced`` when the attempt is over, or is none."""
        running = select(Attempt.number).join(Execution, Execution.id == Attempt.execution)
        mine = Attempt.execution == execution, Attempt.number == number, Execution.attempt == number
        if self._session.scalar(running.where(*mine, Attempt.state == "running", Execution.ended_at.is_(None))) is None:
            raise Fenced(f"Attempt {number} of execution {execution} is over. This process must stop.")

    def give_to_driver(self, execution: str, number: int, process: str, token_sha256: str) -> None:
        """From now on the attempt's driver is known by this token. ``process``: which it says that it is, proven.

        Raises ``NotFound``; ``Fenced`` when the attempt is over, or its driver has begun with another token;
        ``Unauthenticated`` when its driver is another one, ``LauncherUnavailable`` while nobody has written down which.
        """
        row = self._session.get(Attempt, (execution, number), with_for_update=True)
        if row is None:
            raise NotFound("There is no such execution and attempt.")
        if row.state != "running" or (row.begun_at is not None and row.token_sha256 != token_sha256):
            raise Fenced(f"Attempt {number} of execution {execution} is over, or another driver has begun it.")
        if row.process is None:
            raise LauncherUnavailable("The control plane has not written down yet which driver it launched. Ask again.")
        if row.process != process:
            raise Unauthenticated(f"The driver of attempt {number} of execution {execution} is another one.")
        row.token_sha256 = token_sha256

    def attempt_of(self, process: str) -> DriverName | None:
        """The attempt that is going on whose driver this is, as it was written down when it was launched."""
        found = self._session.execute(
            select(Attempt.execution, Attempt.number)
            .join(Execution, Execution.id == Attempt.execution)
            .where(Execution.state.in_(("starting", "running", "stopping")))
            .where(Attempt.state == "running", Attempt.process == process)
        ).first()
        return None if found is None else DriverName(found.execution, found.number)

    def get(self, id: str, project: str) -> Token:
        """Locked until the transaction ends. Raises ``NotFound`` also for those of other projects."""
        row = self._session.get(Token, id, with_for_update=True)
        if row is None or row.project != project:
            raise NotFound(f"There is no token {id!r}.")
        return row

    def page(self, page: PageRequest, project: str) -> Part:
        """By name."""
        return paginate(self._session, select(Token).where(Token.project == project), page, [Token.name])

    def revoke(self, row: Token, by: str) -> None:
        """For good: the id is remembered, so that the same token is not seeded again from a file."""
        self._session.add(RevokedToken(id=row.id, name=row.name, revoked_at=now(), revoked_by=by))
        self._session.delete(row)
        self._session.flush()


def roles_of(row: Token) -> dict[str, Role]:
    """By name of project."""
    if row.roles is None:
        return {DEFAULT_PROJECT: Scope(row.scope).role}
    return {project: Role(role) for project, role in row.roles.items()}


def token_answer(row: Token) -> TokenAnswer:
    return TokenAnswer(
        id=row.id,
        name=local_name(row.name),
        project=row.project,
        roles=roles_of(row),
        scope=Scope(row.scope) if row.project == DEFAULT_PROJECT else None,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
