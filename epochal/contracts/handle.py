"""The handle: the small serialisable value that a pre-commit returns."""

from __future__ import annotations

import builtins
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from epochal.contracts.conditions import Due


class Handle(BaseModel):
    """Everything that a later commit or abort needs, in any process (thesis 4.1.4).

    ``owner`` is the operator's or the sink's name, ``subtask`` its index; ``payload`` is JSON that only the backend
    that wrote it reads (at most a few kilobytes); ``rows`` and ``bytes`` count durable output. ``due``: earliest times
    that the operator's subtask waits for after the epoch; ``None`` if it waits for none. ``agreed``: a value that must
    be equal in the handles of all subtasks of the operator, or the epoch is aborted. ``dropped_timers``: number of
    timers dropped at the end of the input. ``carried``: small files of the pre-commit by path, which the driver writes
    together with the manifest; they are no part of the JSON.
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
    carried: dict[str, builtins.bytes] = Field(default={}, exclude=True, repr=False)

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Every manifest has handles, and most have only defaults in these fields."""
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
        """The handle is the first line of a task's answer."""
        return cls.model_validate_json(data.partition(b"\n")[0])
