from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from epochal.wire.bodies import ALL_SAID, Answer, Open
from epochal.wire.problems import Problem

OperationKind = Literal[
    "start",
    "stop",
    "restart",
    "savepoint",
    "transaction",
    "query",
    "upgrade",
    "rescale",
    "rollback",
    "export",
    "import",
    "trial",
    "rekey",
    "collect",
    "verify",
    "backup",
    "prune",
]
OperationState = Literal["running", "succeeded", "failed", "cancelled"]


class OperationAnswer(Answer):
    """Long work: ask again until ``state`` is not ``running``; then ``result`` or ``error`` is there.

    One that was asked to be cancelled has ``cancel_requested_at``, and is ``running`` until nothing is left of it.
    """

    model_config = ALL_SAID

    id: str
    kind: Open[OperationKind]
    project: str = "default"
    application: str | None
    """Null for what concerns the whole store. Of an import, the one that it makes."""
    state: Open[OperationState]
    progress: str | None
    result: dict[str, Any] | None
    error: Problem | None
    created_at: datetime
    finished_at: datetime | None
    cancel_requested_at: datetime | None = None
