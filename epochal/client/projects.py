"""Projects: for administrators of the installation; and what the caller's own ones have."""

from __future__ import annotations

from collections.abc import Mapping

from epochal.client.exchanges import Request
from epochal.client.models import Project
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.wire.bodies import read
from epochal.wire.projects import ChangeProject, Quotas


class Projects:
    """``client.projects``. ``quotas``: of ``applications``, ``running`` and ``subtasks``; what is left out is not
    bounded."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, name: str, quotas: Mapping[str, int] | None = None) -> Project:
        """Raises ``NameTaken``, also for the name of one that was deleted."""
        return read(Project, self._transport.post("/v1/projects", {"name": name, "quotas": dict(quotas or {})}))

    def list(self, limit: int | None = None) -> list[Project]:
        """Those in which the caller has a role, by name."""
        return self._transport.pages("/v1/projects", Project, limit)

    def get(self, name: str) -> Project:
        return read(Project, self._transport.get(path("projects", name)))

    def set(self, name: str, quotas: Mapping[str, int | None]) -> Project:
        """In place of all quotas that it had. What is there already stays."""
        content = ChangeProject(quotas=Quotas(**quotas)).model_dump_json().encode()
        request = Request("PUT", path("projects", name), content=content, content_type="application/json")
        return read(Project, self._transport.send(request).json())

    def delete(self, name: str) -> None:
        """With its tokens, webhooks, uploads and artifacts. Raises ``Conflict`` while it has applications."""
        self._transport.delete(path("projects", name))
