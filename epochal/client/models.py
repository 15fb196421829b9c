"""Answers of the control plane: the models of :mod:`epochal.wire`.

Unknown fields are ignored and unknown kinds are ``other``, so that a client can use a later control plane. Times are
UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from epochal.client.drawn import Blame, KeyHistory, Lineage, Scan, StateLookup, StateValue, Version
from epochal.contracts.catalog import Change, EpochCounts, ManifestReference
from epochal.contracts.catalog import EpochRecord as Epoch
from epochal.wire.administration import AuditEntryAnswer as AuditEntry
from epochal.wire.administration import NewWebhookAnswer as NewWebhook
from epochal.wire.administration import NodeAnswer as Node
from epochal.wire.administration import WebhookAnswer as Webhook
from epochal.wire.applications import ApplicationAnswer as Application
from epochal.wire.applications import (
    ApplicationLag,
    ApplicationState,
    AutoscalingDecision,
    Head,
    ImportOrigin,
    LifecycleItem,
    Parent,
    Restarts,
    RunSettings,
    SinkLoad,
    SourceLag,
    SourceLoad,
)
from epochal.wire.applications import AttemptAnswer as Attempt
from epochal.wire.applications import ExecutionAnswer as Execution
from epochal.wire.applications import LoadAnswer as Load
from epochal.wire.applications import PlacementAnswer as Placement
from epochal.wire.applications import StatusAnswer as Status
from epochal.wire.bodies import Answer, read
from epochal.wire.bundles import ImportPlan, SinkMove, SourcePosition
from epochal.wire.bundles import UploadAnswer as Upload
from epochal.wire.calls import CallAnswer, EntryDescription
from epochal.wire.history import (
    DatedChange,
    DiffPath,
    DiffPaths,
    DiffRow,
    DiffSide,
    ParameterDiff,
    SnapshotDiff,
    SourceRange,
    SourceSlice,
    TableDiff,
)
from epochal.wire.history import KeyChangeAnswer as KeyChange
from epochal.wire.lineage import LineageEdge, LineageLabel, LineageNode
from epochal.wire.lineage import LineagesAnswer as Lineages
from epochal.wire.operations import OperationAnswer as Operation
from epochal.wire.preflight import Comparison, PartChange, StateChange, TrialSink, TrialTable
from epochal.wire.preflight import PreflightAnswer as Preflight
from epochal.wire.preflight import TrialAnswer as Trial
from epochal.wire.problems import Problem
from epochal.wire.projects import ProjectAnswer as Project
from epochal.wire.rollback import RollbackPlan, SinkPlan, SnapshotName
from epochal.wire.sessions import ListedSession
from epochal.wire.sessions import SessionLinkAnswer as SessionLink
from epochal.wire.snapshots import Annotations, KeyGroupSizes, SavepointManifest
from epochal.wire.snapshots import SavepointAnswer as Savepoint
from epochal.wire.snapshots import SnapshotMessageAnswer as SnapshotMessage
from epochal.wire.snapshots import SnapshotPinAnswer as SnapshotPin
from epochal.wire.snapshots import SnapshotTagAnswer as SnapshotTag
from epochal.wire.snapshots import TransactionAnswer as Transaction
from epochal.wire.standing_queries import QueryResult, QueryResults
from epochal.wire.standing_queries import StandingQueriesAnswer as StandingQueries
from epochal.wire.standing_queries import StandingQueryAnswer as StandingQuery
from epochal.wire.state import ScannedRow, StateColumn, ValueColumn
from epochal.wire.state import StateTableAnswer as StateTable
from epochal.wire.store import AmountAnswer as Amount
from epochal.wire.store import BackupAnswer as Backup
from epochal.wire.store import CollectionAnswer as Collection
from epochal.wire.store import CollectionPlanAnswer as CollectionPlan
from epochal.wire.store import DeletableFile
from epochal.wire.store import FindingAnswer as Finding
from epochal.wire.store import PruningAnswer as Pruning
from epochal.wire.store import VerificationAnswer as Verification
from epochal.wire.tokens import NewTokenAnswer as NewToken
from epochal.wire.tokens import RotatedTokenAnswer as RotatedToken
from epochal.wire.tokens import TokenAnswer as Token
from epochal.wire.versions import ArtifactAnswer as Artifact
from epochal.wire.versions import ArtifactSource, SourceFile

__all__ = [
    "Amount",
    "Annotations",
    "Application",
    "ApplicationLag",
    "ApplicationState",
    "Artifact",
    "ArtifactSource",
    "Attempt",
    "AuditEntry",
    "AutoscalingDecision",
    "Backup",
    "Blame",
    "CallAnswer",
    "Change",
    "Collection",
    "CollectionPlan",
    "Comparison",
    "DatedChange",
    "DiffPath",
    "DiffPaths",
    "DiffRow",
    "DiffSide",
    "DeletableFile",
    "EntryDescription",
    "Epoch",
    "EpochCounts",
    "Event",
    "Execution",
    "Finding",
    "Head",
    "ImportOrigin",
    "ImportPlan",
    "KeyChange",
    "KeyGroupSizes",
    "KeyHistory",
    "LifecycleItem",
    "Lineage",
    "LineageEdge",
    "LineageLabel",
    "LineageNode",
    "Lineages",
    "ListedSession",
    "Load",
    "NewToken",
    "NewWebhook",
    "Node",
    "Operation",
    "ParameterDiff",
    "Parent",
    "PartChange",
    "Placement",
    "Preflight",
    "Problem",
    "Project",
    "Pruning",
    "QueryResult",
    "QueryResults",
    "Restarts",
    "RollbackPlan",
    "RunSettings",
    "RotatedToken",
    "Savepoint",
    "SavepointManifest",
    "Scan",
    "ScannedRow",
    "SessionLink",
    "SinkMove",
    "SinkPlan",
    "Snapshot",
    "SnapshotDiff",
    "SnapshotMessage",
    "SnapshotName",
    "SnapshotPin",
    "SnapshotTag",
    "SourcePosition",
    "SinkLoad",
    "SourceFile",
    "SourceLag",
    "SourceLoad",
    "SourceRange",
    "SourceSlice",
    "StandingQueries",
    "StandingQuery",
    "StateChange",
    "StateColumn",
    "StateLookup",
    "StateTable",
    "StateValue",
    "Status",
    "TableDiff",
    "Token",
    "Transaction",
    "Trial",
    "TrialSink",
    "TrialTable",
    "Upload",
    "ValueColumn",
    "Verification",
    "Version",
    "Webhook",
    "read",
]


class Snapshot(Answer):
    """A snapshot. ``manifest``: the manifest as JSON; ``reference``: its location in the store."""

    application: str
    branch: str
    epoch: int
    artifact: str
    parent: ManifestReference | None = None
    reference: ManifestReference
    parallelism: int
    created_at: datetime
    annotations: Annotations
    """Pin, tags and message."""
    manifest: dict[str, Any]


class Event(Answer):
    """A server-sent event. ``id``: position from which to continue after a lost connection."""

    id: str | None = None
    kind: str
    data: dict[str, Any] = Field(default_factory=dict)
