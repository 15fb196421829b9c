"""Tables of the catalog. A test checks that the migrations create exactly this schema.

The row of a branch is the lock of its line: every write of the epoch protocol first updates this row and names its
attempt. Writes to one branch are therefore serialised, and a fenced attempt matches no row. Attempt numbers increase
along a branch, also across executions, because sinks fence by them.
"""

from __future__ import annotations

from epochal.service.catalog.models.access_rows import RevokedToken, SessionLink, Token, UserSession
from epochal.service.catalog.models.application_rows import (
    Aborted,
    Application,
    Artifact,
    Attempt,
    Branch,
    Execution,
    Inbox,
    InboxBatch,
    InboxCall,
    ProjectArtifact,
    Report,
    SkippedTotals,
    Version,
)
from epochal.service.catalog.models.base import Base, Json, JsonList
from epochal.service.catalog.models.control_plane import (
    AuditEntry,
    Directive,
    EventStream,
    IdempotencyKey,
    Installation,
    Lease,
    LoggedEvent,
    NodeRow,
    Operation,
    Project,
    QueryCommandRow,
    StoreFile,
    Upload,
    Webhook,
    WebhookDelivery,
)
from epochal.service.catalog.models.snapshot_rows import (
    Epoch,
    FoldedEpochs,
    Savepoint,
    SnapshotMessage,
    SnapshotPin,
    SnapshotTag,
)

__all__ = [
    "Aborted",
    "Application",
    "Artifact",
    "Attempt",
    "AuditEntry",
    "Base",
    "Branch",
    "Directive",
    "Epoch",
    "EventStream",
    "Execution",
    "FoldedEpochs",
    "IdempotencyKey",
    "Inbox",
    "InboxBatch",
    "InboxCall",
    "Installation",
    "Json",
    "JsonList",
    "Lease",
    "SkippedTotals",
    "LoggedEvent",
    "NodeRow",
    "Operation",
    "Project",
    "ProjectArtifact",
    "QueryCommandRow",
    "Report",
    "RevokedToken",
    "Savepoint",
    "SessionLink",
    "SnapshotMessage",
    "SnapshotPin",
    "SnapshotTag",
    "StoreFile",
    "Token",
    "Upload",
    "UserSession",
    "Version",
    "Webhook",
    "WebhookDelivery",
]
