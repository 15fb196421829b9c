"""The handle: the small serialisable value that a pre-commit returns."""

from __future__ import annotations

import builtins
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Handle(BaseModel):
    """All that a commit or an abort needs later, in any process (thesis 4.1.4).

    ``owner`` is the operator's or the sink's name, ``subtask`` its index; ``payload`` is JSON that only the backend
    which made it reads (at most a few kilobytes); ``rows`` and ``bytes`` count what was made durable.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    owner: str
    subtask: int
    rows: int
    bytes: int
    payload: dict[str, Any]

    def encode(self) -> builtins.bytes:
        """Canonical JSON: the same handle always has the same bytes."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: builtins.bytes) -> Handle:
        return cls.model_validate_json(data)
