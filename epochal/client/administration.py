"""Projects, access tokens, links to the console, the audit log, control planes, query nodes, and the snapshot store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from epochal.client.exchanges import Request, path
from epochal.client.models import (
    AuditEntry,
    CollectionPlan,
    ListedSession,
    NewToken,
    Node,
    Operation,
    Project,
    Pruning,
    RotatedToken,
    SessionLink,
    Token,
)
from epochal.client.transport import Transport
from epochal.wire.bodies import read
from epochal.wire.projects import ChangeProject, Quotas
from epochal.wire.sessions import LINK_SECONDS

Role = Literal["viewer", "operator", "author", "admin"]


class Projects:
    """``client.projects``. ``quotas`` have the members ``applications``, ``running`` and ``subtasks``; omitted ones are
    unlimited."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, quotas: Mapping[str, int] | None = None) -> Project:
        """Create a project. Raises ``NameTaken``, also for the name of a deleted project."""
        return read(Project, self._transport.post("/v1/projects", {"name": name, "quotas": dict(quotas or {})}))

    def list(self, limit: int | None = None) -> list[Project]:
        """List the projects in which the caller has a role, by name."""
        return self._transport.pages("/v1/projects", Project, limit)

    def get(self, name: str) -> Project:
        return read(Project, self._transport.get(path("projects", name)))

    def set(self, name: str, quotas: Mapping[str, int | None]) -> Project:
        """Replace all quotas. Existing applications and executions are not affected."""
        content = ChangeProject(quotas=Quotas(**quotas)).model_dump_json().encode()
        request = Request("PUT", path("projects", name), content=content, content_type="application/json")
        return read(Project, self._transport.send(request).json())

    def delete(self, name: str) -> None:
        """Delete a project with its tokens, webhooks, uploads and artifacts. Raises ``Conflict`` if it has
        applications."""
        self._transport.delete(path("projects", name))


class Tokens:
    """``client.tokens``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, role: Role = "viewer", expires_at: datetime | None = None) -> NewToken:
        """Create a token with a role in the project.

        Only this answer contains the token's text; the control plane stores a hash.
        """
        body = {"name": name, "role": role, "expires_at": None if expires_at is None else expires_at.isoformat()}
        return read(NewToken, self._transport.post("/v1/tokens", body))

    def list(self, limit: int | None = None) -> list[Token]:
        return self._transport.pages("/v1/tokens", Token, limit)

    def rotate(self, id: str, expires_at: datetime | None = None) -> RotatedToken:
        """Replace token ``id`` by a new one with its name and roles, and revoke it."""
        body = {"expires_at": None if expires_at is None else expires_at.isoformat()}
        return read(RotatedToken, self._transport.post(path("tokens", id, "rotate"), body))

    def delete(self, id: str) -> None:
        """Revoke a token permanently."""
        self._transport.delete(path("tokens", id))


class Sessions:
    """``client.sessions``: sessions of browsers, and links with which they sign in once."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, limit: int | None = None) -> list[ListedSession]:
        """List the caller's sessions, newest first; an administrator of the installation gets those of everyone."""
        return self._transport.pages("/v1/sessions", ListedSession, limit)

    def end(self, id: str) -> None:
        """End a session. Raises ``NotFound``, also for sessions of others."""
        self._transport.delete(path("sessions", id))

    def create_link(self, path: str = "/console/", *, seconds: float = LINK_SECONDS) -> SessionLink:
        """Create a link with which a browser signs in once to the console, and sees the page ``path``.

        ``seconds``: time in which it can be used, at most an hour. Raises ``Conflict`` if authentication is off: the
        console then needs no link.
        """
        body = {"path": path, "seconds": seconds}
        return read(SessionLink, self._transport.query("/v1/session/links", body))


class Audit:
    """``client.audit``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        limit: int | None = 100,
        *,
        token: str | None = None,
        action: str | None = None,
        application: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[AuditEntry]:
        """List entries, newest first.

        Only those of a ``token`` or person, of an ``action`` (``POST /v1/applications/{name}/stop``), of an
        ``application``, and from ``since`` until before ``until``, which have a time zone or are local times.
        """
        only = {
            "token": token,
            "action": action,
            "application": application,
            "since": None if since is None else since.astimezone().isoformat(),
            "until": None if until is None else until.astimezone().isoformat(),
        }
        query = {name: value for name, value in only.items() if value is not None}
        return self._transport.pages("/v1/audit", AuditEntry, limit, query)


class Nodes:
    """``client.nodes``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, limit: int | None = None) -> list[Node]:
        """Nodes, oldest first. A node that has stopped without notice is listed as ``gone`` for an hour."""
        return self._transport.pages("/v1/nodes", Node, limit)


class Store:
    """``client.store``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def plan_collection(self, grace_seconds: float | None = None, foreign: Sequence[str] = ()) -> CollectionPlan:
        """Plan a collection without deleting: the files it would delete, with reasons."""
        body = {"grace_seconds": grace_seconds, "foreign": list(foreign)}
        return read(CollectionPlan, self._transport.query("/v1/collections/plan", body))

    def collect(self, grace_seconds: float | None = None, foreign: Sequence[str] = ()) -> Operation:
        """Delete files that no retained snapshot needs; the operation's result lists them. Raises ``Conflict``."""
        body = {"grace_seconds": grace_seconds, "foreign": list(foreign)}
        return read(Operation, self._transport.post("/v1/collections", body))

    def verify(self, application: str | None = None, *, quick: bool = False, repair: bool = False) -> Operation:
        """Check every file that retained snapshots need; the operation's result is the report."""
        body = {"application": application, "quick": quick, "repair": repair}
        return read(Operation, self._transport.post("/v1/verifications", body))

    def back_up(self, to: str) -> Operation:
        """Copy the catalog and the files that it references to ``to``: an absolute path on the control plane's machine,
        or a URL.

        The operation's result is a :class:`~epochal.client.models.BackedUp`. Raises ``Conflict`` while files are being
        deleted."""
        return read(Operation, self._transport.post("/v1/backups", {"to": to}))

    def plan_pruning(self, place: str, *, keep: int | None = None, older_than_seconds: float | None = None) -> Pruning:
        """Plan a pruning of the backups in ``place``: backups that would be removed, and the space freed. Read-only.
        Raises ``NotFound``, and ``Conflict`` if no remaining backup would be complete."""
        body = {"place": place, "keep": keep, "older_than_seconds": older_than_seconds}
        return read(Pruning, self._transport.query("/v1/backups/prune/plan", body))

    def prune_backups(
        self, place: str, *, keep: int | None = None, older_than_seconds: float | None = None
    ) -> Operation:
        """Remove all backups except the ``keep`` newest and those below the minimum age, and files that only removed
        backups reference.

        The operation's result is a :class:`~epochal.client.models.Pruned`. Raises ``Conflict`` while a backup is
        created."""
        body = {"place": place, "keep": keep, "older_than_seconds": older_than_seconds}
        return read(Operation, self._transport.post("/v1/backups/prune", body))
