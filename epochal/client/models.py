"""What the control plane answers, as frozen models.

Unknown fields are ignored, so that an older client can talk to a newer control plane. Times are UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.catalog import EpochRecord, Failure, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.wire.problems import Problem


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Artifact(Answer):
    """Registered code: one file or one zip, known by its sha256. Size in bytes."""

    sha256: str
    filename: str
    bytes: int
    created_at: datetime


class Head(Answer):
    """The latest committed epoch of an application's branch."""

    branch: str
    epoch: int
    committed_at: datetime | None = None
    drained: bool = False


class Parent(Answer):
    """The snapshot that an application was forked from."""

    application: str
    branch: str
    epoch: int


ApplicationState = Literal["created", "starting", "running", "stopping", "stopped", "failed"]


class Restarts(Answer):
    """Attempts that failed lately; ``failure`` is the last one. With more than ``allowed`` the application fails."""

    failures: int
    allowed: int
    failure: Failure
    failed_at: datetime
    next_attempt_at: datetime | None = None


class Application(Answer):
    """A named streaming program and where it is now. ``detail`` and ``failure`` say why, for people."""

    name: str
    revision: str | None = None
    """Another one after each change of the application, for ``if_match``."""
    state: ApplicationState
    detail: str | None = None
    branch: str
    version: int
    artifact: str
    parameters: dict[str, Any] = {}
    configuration: dict[str, Any] = {}
    shadow: bool = False
    head: Head | None = None
    parent: Parent | None = None
    execution: str | None = None
    failure: Failure | None = None
    restarts: Restarts | None = None
    created_at: datetime
    updated_at: datetime


class Version(Answer):
    """One version of an application: code, parameters and configuration, with the graph they build."""

    number: int
    artifact: str
    parameters: dict[str, Any] = {}
    configuration: dict[str, Any] = {}
    graph: Any = None
    message: str | None = None
    failure: Failure | None = None
    """Why it was given up; it is not used."""
    operation: str | None = None
    """Puts it in place of the version that runs."""
    created_at: datetime
    created_by: str | None = None


class Operation(Answer):
    """Long work of the control plane. ``progress`` is one line for people; ``result`` depends on ``kind``.

    With ``cancel_requested_at`` it is ``running`` until nothing is left of it, and ``cancelled`` then.
    """

    id: str
    kind: str
    application: str | None = None
    state: Literal["running", "succeeded", "failed", "cancelled"]
    progress: str | None = None
    result: dict[str, Any] | None = None
    error: Problem | None = None
    created_at: datetime
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None


class Attempt(Answer):
    """One attempt of an execution: one driver process."""

    number: int
    state: Literal["running", "ended", "lost", "failed"]
    started_at: datetime | None = None
    ended_at: datetime | None = None
    failure: Failure | None = None
    process: str | None = None


class Status(Answer):
    """What the driver last said of itself."""

    phase: str
    detail: str | None = None
    epoch: int | None = None


class Execution(Answer):
    """One run of an application's version; ``attempt`` is the current one."""

    id: str
    application: str
    version: int
    state: Literal["starting", "running", "stopping", "stopped", "failed"]
    attempt: int
    available_now: bool = False
    drain: bool = True
    status: Status | None = None
    heartbeat_at: datetime | None = None
    stop_requested_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempts: tuple[Attempt, ...] = ()


class Epoch(EpochRecord):
    """One epoch of an application."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SavepointManifest(Answer):
    path: str
    sha256: str


class Savepoint(Answer):
    """A snapshot with a name, kept until deleted."""

    name: str
    branch: str
    epoch: int
    manifest: SavepointManifest | None = None
    message: str | None = None
    created_at: datetime
    created_by: str | None = None


class OpenTransaction(Answer):
    """One sink's part of a prepared epoch; ``error``, ``waiting_since``: why it cannot be committed, and since when."""

    branch: str
    epoch: int
    sink: str
    rows: int
    prepared_at: datetime | None = None
    waiting_since: datetime | None = None
    error: str | None = None
    driver: bool


class OpenTransactions(Answer):
    items: tuple[OpenTransaction, ...]


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
    annotations: dict[str, Any] = {}
    """What people say of it: ``pin``, ``tags``, ``message``."""
    manifest: dict[str, Any]


class LineageCounts(Answer):
    """What the epoch read, wrote and changed: rows, rows, rows, bytes."""

    rows_in: int | None = None
    rows_out: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None


class LineageChange(Answer):
    """What took effect with a snapshot: ``start``, ``fork``, .."""

    kind: str
    detail: dict[str, Any] = {}


class LineageNode(Answer):
    """One snapshot of the tree, or a folded run of ``epochs`` plain ones, from ``first`` to ``epoch``."""

    branch: str
    epoch: int
    first: int | None = None
    epochs: int = 1
    application: str
    state: str
    artifact: str | None = None
    parameters: dict[str, Any] | None = None
    changes: tuple[LineageChange, ...] = ()
    savepoints: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    pinned: bool = False
    message: str | None = None
    counts: LineageCounts | None = None
    committed_at: datetime | None = None
    collected: bool = False

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


class LineageLabel(Answer):
    """Who did it, when and why, and the code and parameters from then on."""

    by: str | None = None
    at: datetime | None = None
    message: str | None = None
    version: int | None = None
    artifact: str | None = None
    parameters: dict[str, Any] = {}


class LineageEdge(Answer):
    """From a snapshot to one built on it; ``kind`` is ``epoch``, or what was done: ``fork``, ``rollback``, ``import``,
    ``start`` (a new branch), ``upgrade``, ``rescale``, ``parameters``, ``sinks``, ``configuration``, ``version``."""

    source: EpochKey = Field(alias="from")
    target: EpochKey = Field(alias="to")
    kind: str
    label: LineageLabel | None = None
    slices: dict[str, Any] | None = None


class Lineage(Answer):
    """The tree of snapshots around an application, newest first."""

    application: str
    head: EpochKey | None = None
    nodes: tuple[LineageNode, ...] = ()
    edges: tuple[LineageEdge, ...] = ()
    next_cursor: str | None = None


class KeyColumn(Answer):
    name: str
    type: str


class ValueColumn(KeyColumn):
    """``internal``: kept so that another column can be computed from it (the sum and the count of an average)."""

    internal: bool = False


class StateTable(Answer):
    """A state table of an application: its schema, and how many rows it holds at (branch, epoch)."""

    table: str
    operator: str
    kind: str
    scope: str = "keyed"
    key: tuple[KeyColumn, ...]
    sub_key: tuple[KeyColumn, ...] = ()
    value: tuple[ValueColumn, ...] = ()
    queryable: bool = True
    rows: int | None = None
    branch: str | None = None
    epoch: int | None = None
    note: str | None = None


class StateValue(Answer):
    """The answer to one look-up: ``value``, or ``entries`` for list and map state addressed by the operator's key."""

    table: str
    key: dict[str, Any]
    value: dict[str, Any] | None = None
    entries: tuple[dict[str, Any], ...] | None = None
    branch: str
    epoch: int
    isolation: str | None = None


class StateLookup(Answer):
    """The answer to a batch: one value, or ``None``, for each key in the order asked; all from one epoch."""

    table: str
    branch: str
    epoch: int
    isolation: str | None = None
    values: tuple[dict[str, Any] | None, ...]


class Event(Answer):
    """One server-sent event. ``id`` is where to go on after a lost connection."""

    id: str | None = None
    kind: str
    data: dict[str, Any] = {}


class Token(Answer):
    """An access token. ``token`` itself is in the answer that made it only; ``file`` is the admin token file that a
    rotation has rewritten."""

    id: str
    name: str
    scope: Literal["read", "operate", "admin"]
    token: str | None = None
    file: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None


class AuditRecord(Answer):
    """Who did what, to what; ``outcome`` is the HTTP status that it was answered with."""

    at: datetime
    token: str | None = None
    action: str
    target: str | None = None
    outcome: int
