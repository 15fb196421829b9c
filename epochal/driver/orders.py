"""The driver's orders: the one JSON document that it reads from standard input, which is closed after it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.parameters import Parameters
from epochal.engine.settings import Configuration
from epochal.errors import ArtifactError


class ArtifactFile(BaseModel):
    """A registered artifact: where its bytes are on this machine, and the sha256 that they must have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    sha256: str

    def verify(self) -> Path:
        """The path, once its bytes have the checksum. Raises ``ArtifactError``."""
        try:
            found = hashlib.sha256(self.path.read_bytes()).hexdigest()
        except OSError as error:
            raise ArtifactError(
                f"The artifact {self.sha256} cannot be read from {self.path}: {error.strerror}. Upload it again."
            ) from error
        if found != self.sha256:
            raise ArtifactError(
                f"The artifact at {self.path} was changed: its sha256 is {found}, not {self.sha256}. Upload it again."
            )
        return self.path


class DriverOrders(BaseModel):
    """All that a driver is told. It holds no credential but ``token``, good for this execution and attempt only.

    ``store`` is the URL of the snapshot store's root; ``work_directory`` is local, its own, and may be lost.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    control_planes: tuple[str, ...]
    """Where it can call; heartbeats bring the list as it is then."""
    token: str = Field(repr=False)
    execution: str
    attempt: int = Field(ge=1)
    application: str
    artifact: ArtifactFile
    parameters: Parameters = {}
    configuration: Configuration = Configuration()
    version: int | None = None
    by: str | None = None
    message: str | None = None
    shadow: bool = False
    available_now: bool = False
    drain: bool = True
    store: str
    work_directory: Path
