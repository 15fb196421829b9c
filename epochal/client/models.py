"""What the control plane answers, under the names of this client: the models of :mod:`epochal.wire`.

Unknown fields are ignored and unknown kinds are ``other``, so that an older client can talk to a newer control plane.
Times are UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from epochal.contracts.catalog import Change as LineageChange
from epochal.contracts.catalog import EpochCounts as LineageCounts
from epochal.contracts.catalog import EpochRecord as Epoch
from epochal.contracts.catalog import ManifestReference
from epochal.wire.administration import AuditAnswer as AuditRecord
from epochal.wire.administration import NewWebhookAnswer as NewWebhook
from epochal.wire.administration import NodeAnswer as Node
from epochal.wire.administration import WebhookAnswer as Webhook
from epochal.wire.applications import ApplicationAnswer as Application
from epochal.wire.applications import ApplicationState, Head, ImportOrigin, Parent, Restarts
from epochal.wire.applications import AttemptAnswer as Attempt
from epochal.wire.applications import AutoscalingAnswer as AutoscalingVerdict
from epochal.wire.applications import ExecutionAnswer as Execution
from epochal.wire.applications import LoadAnswer as Load
from epochal.wire.applications import StatusAnswer as Status
from epochal.wire.bodies import Answer, read
from epochal.wire.bundles import ImportAnswer as Upload
from epochal.wire.bundles import ImportPlan, SinkMove, SourcePosition
from epochal.wire.entries import CallAnswer
from epochal.wire.entries import EntryAnswer as EntryDescription
from epochal.wire.history import Between as DiffPaths
from epochal.wire.history import (
    Blame,
    DatedChange,
    DiffRow,
    DiffSide,
    KeyHistory,
    ParameterDiff,
    SnapshotDiff,
    SourceRange,
    SourceSlice,
    TableDiff,
)
from epochal.wire.history import HistoryItem as KeyChange
from epochal.wire.history import Side as DiffPath
from epochal.wire.lineage import EdgeLabel as LineageLabel
from epochal.wire.lineage import LineageAnswer as Lineage
from epochal.wire.lineage import LineageEdge, LineageNode
from epochal.wire.operations import OperationAnswer as Operation
from epochal.wire.preflight import Comparison, PartChange, StateChange, TrialSink, TrialTable
from epochal.wire.preflight import PreflightAnswer as Preflight
from epochal.wire.preflight import TrialAnswer as Trial
from epochal.wire.problems import Problem
from epochal.wire.projects import ProjectAnswer as Project
from epochal.wire.rollback import RollbackPlan, SinkPlan
from epochal.wire.rollback import SnapshotName as NamedSnapshot
from epochal.wire.snapshots import Annotations, SavepointManifest
from epochal.wire.snapshots import MessageAnswer as SnapshotMessage
from epochal.wire.snapshots import PinAnswer as Pin
from epochal.wire.snapshots import SavepointAnswer as Savepoint
from epochal.wire.snapshots import TagAnswer as Tag
from epochal.wire.snapshots import TransactionAnswer as OpenTransaction
from epochal.wire.snapshots import TransactionsAnswer as OpenTransactions
from epochal.wire.standing_queries import QueryResult, QueryResults
from epochal.wire.standing_queries import StandingQueriesAnswer as StandingQueries
from epochal.wire.standing_queries import StandingQueryAnswer as StandingQuery
from epochal.wire.state import BatchLookup as StateLookup
from epochal.wire.state import Column as KeyColumn
from epochal.wire.state import PointLookup as StateValue
from epochal.wire.state import Scan, ScannedRow, ValueColumn
from epochal.wire.state import StateTableView as StateTable
from epochal.wire.store import AmountAnswer as Amount
from epochal.wire.store import BackupAnswer as BackedUp
from epochal.wire.store import CollectionAnswer as Collected
from epochal.wire.store import CollectionPlanAnswer as CollectionPlan
from epochal.wire.store import DoomedFile
from epochal.wire.store import FindingAnswer as Finding
from epochal.wire.store import PruneAnswer as Pruned
from epochal.wire.store import VerificationAnswer as Verified
from epochal.wire.tokens import NewTokenAnswer as NewToken
from epochal.wire.tokens import RotatedTokenAnswer as RotatedToken
from epochal.wire.tokens import TokenAnswer as Token
from epochal.wire.versions import ArtifactAnswer as Artifact
from epochal.wire.versions import VersionAnswer as Version

__all__ = [
    "Amount",
    "Annotations",
    "Application",
    "ApplicationState",
    "Artifact",
    "Attempt",
    "AuditRecord",
    "AutoscalingVerdict",
    "BackedUp",
    "Blame",
    "CallAnswer",
    "Collected",
    "CollectionPlan",
    "Comparison",
    "DatedChange",
    "DiffPath",
    "DiffPaths",
    "DiffRow",
    "DiffSide",
    "DoomedFile",
    "EntryDescription",
    "Epoch",
    "Event",
    "Execution",
    "Finding",
    "Head",
    "ImportOrigin",
    "ImportPlan",
    "KeyChange",
    "KeyColumn",
    "KeyHistory",
    "Lineage",
    "LineageChange",
    "LineageCounts",
    "LineageEdge",
    "LineageLabel",
    "LineageNode",
    "Load",
    "NamedSnapshot",
    "NewToken",
    "NewWebhook",
    "Node",
    "OpenTransaction",
    "OpenTransactions",
    "Operation",
    "ParameterDiff",
    "Parent",
    "PartChange",
    "Pin",
    "Preflight",
    "Problem",
    "Project",
    "Pruned",
    "QueryResult",
    "QueryResults",
    "Restarts",
    "RollbackPlan",
    "RotatedToken",
    "Savepoint",
    "SavepointManifest",
    "Scan",
    "ScannedRow",
    "SinkMove",
    "SinkPlan",
    "Snapshot",
    "SnapshotDiff",
    "SnapshotMessage",
    "SourcePosition",
    "SourceRange",
    "SourceSlice",
    "StandingQueries",
    "StandingQuery",
    "StateChange",
    "StateLookup",
    "StateTable",
    "StateValue",
    "Status",
    "TableDiff",
    "Tag",
    "Token",
    "Trial",
    "TrialSink",
    "TrialTable",
    "Upload",
    "ValueColumn",
    "read",
    "Verified",
    "Version",
    "Webhook",
]


class Snapshot(Answer):
    """One snapshot; ``manifest`` is the whole manifest as JSON, ``reference`` says where it is in the store."""

    application: str
    branch: str
    epoch: int
    artifact: str
    parent: ManifestReference | None = None
    reference: ManifestReference
    parallelism: int
    created_at: datetime
    annotations: Annotations
    """What people say of it."""
    manifest: dict[str, Any]


class Event(Answer):
    """One server-sent event. ``id`` is where to go on after a lost connection."""

    id: str | None = None
    kind: str
    data: dict[str, Any] = Field(default_factory=dict)
