from __future__ import annotations

from datetime import datetime
from typing import Any

from epochal.pipeline.description import GraphDescription
from epochal.service.applications.configuration import ApplicationConfiguration
from epochal.service.schema import Answer, Body, Sha256


class CreateVersion(Body):
    """What is left out stays as in the latest version; what is given replaces it. A next start uses the new version."""

    artifact: Sha256 | None = None
    parameters: dict[str, Any] | None = None
    configuration: ApplicationConfiguration | None = None


class VersionAnswer(Answer):
    number: int
    artifact: str
    parameters: dict[str, Any]
    configuration: ApplicationConfiguration
    graph: GraphDescription | None
    created_at: datetime
    created_by: str
