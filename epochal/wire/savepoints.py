from __future__ import annotations

from datetime import datetime

from epochal.wire.bodies import Answer, Body, Message, Name


class CreateSavepoint(Body):
    name: Name
    message: Message | None = None


class SavepointManifest(Answer):
    path: str
    sha256: str


class SavepointAnswer(Answer):
    """A snapshot with a name, kept until it is deleted."""

    name: str
    branch: str
    epoch: int
    manifest: SavepointManifest
    message: str | None
    created_at: datetime
    created_by: str
