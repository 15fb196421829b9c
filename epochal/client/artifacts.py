"""Artifacts: registered code."""

from __future__ import annotations

from pathlib import Path

from epochal.client.models import Artifact
from epochal.client.paths import path
from epochal.client.transport import Transport
from epochal.errors import ArtifactError
from epochal.wire.bodies import read


class Artifacts:
    """``client.artifacts``"""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def upload(self, file: str | Path) -> Artifact:
        """Register a Python file or a zip. The same bytes are the same artifact. Raises ``ArtifactError``."""
        source = Path(file)
        try:
            content = source.read_bytes()
        except OSError as error:
            raise ArtifactError(f"The artifact {source} cannot be read: {error.strerror}; check the path.") from error
        return read(Artifact, self._transport.upload("/v1/artifacts", {"filename": source.name}, content))

    def get(self, sha256: str) -> Artifact:
        return read(Artifact, self._transport.get(path("artifacts", sha256)))

    def delete(self, sha256: str) -> None:
        """Delete an artifact that no version of an application is made of. Raises ``Conflict``, which names those."""
        self._transport.delete(path("artifacts", sha256))

    def list(self, limit: int | None = None) -> list[Artifact]:
        return self._transport.pages("/v1/artifacts", Artifact, limit)
