from __future__ import annotations

from datetime import datetime

from epochal.wire.bodies import Answer


class ArtifactAnswer(Answer):
    """Registered code: a Python file or a zip, addressed by the SHA-256 of its bytes."""

    sha256: str
    filename: str
    bytes: int
    created_at: datetime
