"""Operations: long-running work of the control plane."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from epochal.wire.bodies import ALL_FIELDS, Answer, Open
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
    "optimize",
    "collect",
    "verify",
    "backup",
    "prune",
]
OperationState = Literal["running", "succeeded", "failed", "cancelled"]


class OperationAnswer(Answer):
    """Long-running work. When ``state`` is no longer ``running``, ``result`` or ``error`` is set.

    A cancelled operation has ``cancel_requested_at`` and is ``running`` until its partial results are deleted.
    """

    model_config = ALL_FIELDS

    id: str
    kind: Open[OperationKind]
    project: str = "default"
    application: str | None
    """Null for operations on the whole store; for an import, the new application."""
    state: Open[OperationState]
    progress: str | None
    result: dict[str, Any] | None
    error: Problem | None
    created_at: datetime
    finished_at: datetime | None
    cancel_requested_at: datetime | None = None
