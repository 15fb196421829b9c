"""The handle: the small serialisable value that a pre-commit returns."""

from __future__ import annotations

import builtins
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from epochal.contracts.conditions import Due


class Handle(BaseModel):
    """All that a commit or an abort needs later, in any process (thesis 4.1.4).

    ``owner`` is the operator's or the sink's name, ``subtask`` its index; ``payload`` is JSON that only the backend
    which made it reads (at most a few kilobytes); ``rows`` and ``bytes`` count what was made durable. ``due``: the
    times that an operator's subtask waits for after the epoch, in all of its state; ``None`` when there is none.
    ``agreed``: what is the same in the handles of all subtasks of the operator, or the epoch is aborted.
    ``dropped_timers``: how many the end of the input left without a time to fire at.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    owner: str
    subtask: int
    rows: int
    bytes: int
    payload: dict[str, Any]
    due: Due | None = None
    agreed: str | None = None
    dropped_timers: int = 0

    @model_serializer(mode="wrap")
    def _without_what_is_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Most handles wait for nothing and agree on nothing, and stand in every manifest."""
        members: dict[str, Any] = serialize(self)
        nothing = {"due": None, "agreed": None, "dropped_timers": 0}
        return {name: value for name, value in members.items() if name not in nothing or value != nothing[name]}

    def encode(self) -> builtins.bytes:
        """Canonical JSON: the same handle always has the same bytes."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()

    @classmethod
    def decode(cls, data: builtins.bytes) -> Handle:
        """A task's answer may say more behind the first line."""
        return cls.model_validate_json(data.partition(b"\n")[0])
