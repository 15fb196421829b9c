"""The catalog as the engine sees it: the few guarded writes of the epoch protocol.

One object serves one (execution, attempt). Every write is guarded by the attempt: after a later attempt has begun, each
raises ``Fenced``. Writes are single compare-and-sets with three outcomes: the call returns (applied), raises (not
applied), or raises ``OutcomeUnknown`` or ``CatalogUnavailable`` (unknown: call again; repeating an applied write
returns).

``Fenced`` means not applied: a write whose effect is in the catalog (the row is prepared with the same manifest)
returns even when a later attempt has begun since. After ``Fenced`` the files of the write may be removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from epochal.contracts.conditions import END, Trigger, Watermarks, as_datetime
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.identity import EpochKey, StorePath
from epochal.contracts.measurements import DriverReport, EpochDurations
from epochal.secrets import redact


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


EpochState = Literal["started", "prepared", "committed", "aborted"]


class ManifestReference(_Record):
    """Location of a snapshot: the manifest's path, relative to the store's root, and the sha256 of its bytes."""

    branch: str
    epoch: int
    path: StorePath
    sha256: str

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


Shown = Annotated[str, AfterValidator(redact)]


class Failure(_Record):
    """Reason why an epoch was aborted or an attempt failed. ``traceback``: traceback of the author's code, if it
    raised."""

    type: str
    message: Shown
    step: str | None = None
    traceback: Shown | None = None


class Change(_Record):
    """A reconfiguration that took effect with an epoch: ``start``, ``fork``, ``rollback``, ``import``, ``rescale``,
    ``rekey``, ``upgrade``, ``parameters``, ``sinks``, ``configuration``, ``transaction``, ``queries``. ``detail`` has
    the old and the new value."""

    kind: str
    detail: dict[str, Any] = {}


class ShownWatermarks(_Record):
    """Watermarks for display. ``None``: not known yet, or, if ``ended``, that no more rows will arrive."""

    late: datetime | None = Field(default=None, description="Rows with earlier times were late.")
    fire: datetime | None = Field(
        default=None, description="The watermark: windows and timers due by this time fired in the epoch."
    )
    idle: bool = Field(
        default=False,
        description="No rows have arrived within the idle timeout, so that it does not hold back other watermarks.",
    )
    ended: bool = Field(default=False, description="The sources are exhausted: all rows have been read.")

    @classmethod
    def of(cls, watermarks: Watermarks) -> ShownWatermarks:
        late, fire = as_datetime(watermarks.late), as_datetime(watermarks.fire)
        return cls(late=late, fire=fire, idle=watermarks.idle, ended=watermarks.fire == END)


class ShownDue(_Record):
    """Time and operator that open the next epoch without input, for display."""

    at: datetime | None = Field(
        description="Time at which the epoch opens, or as soon as a driver runs; null: beyond the range of dates."
    )
    operator: str = Field(description="The operator that waits.")
    clock: Literal["event", "processing"] = Field(
        description="Clock that it waits for: its watermark, which advances then because sources are idle or because "
        "rows of this epoch advance it in the next one; or epoch time."
    )
    until: datetime | None = Field(description="The time by that clock; null: beyond the range of dates.")


class EpochTerms(_Record):
    """Version and triggers of an epoch. ``version``: number of the application version; ``None``: its execution's.

    If ``version`` differs from the execution's, preparing the epoch makes it the execution's: the upgrade is decided
    together with its first epoch, and a later attempt runs the version that produced the head.
    """

    version: int | None = None
    changes: tuple[Change, ...] = ()
    opened_for: tuple[Trigger, ...] = ()
    watermarks: dict[str, ShownWatermarks] = {}
    next_due: ShownDue | None = None
    calls_through: int | None = Field(default=None, exclude=True)
    """Number of the last entry call that the epoch took; ``None``: it took none. It is sent as a header of the prepare
    request."""


AS_THE_EXECUTION = EpochTerms()
"""The execution's version, and no change."""


class EpochRecord(_Record):
    """One row of the epochs of a branch. Times are UTC."""

    branch: str
    epoch: int
    attempt: int
    state: EpochState
    parent: EpochKey | None = None
    manifest: ManifestReference | None = None
    failure: Failure | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    version: int | None = None
    changes: tuple[Change, ...] = ()
    opened_for: tuple[Trigger, ...] = ()
    """Set when the epoch is prepared: ``input``, a time that was ``due``, records ``in_flight`` in a loop, a
    ``command``, or the end of all input (``drain``), after which no epoch follows."""
    late_rows: dict[str, int] = Field(
        default={},
        description="Number of late rows by operator; an operator drops them and sends them to its late stream.",
    )
    rejected_rows: dict[str, int] = Field(
        default={},
        description="By event-time declaration, the number of rows without event time or with one too far in the "
        "future; by sink (`sink orders`), the number of rows that it rejected.",
    )
    dropped_timers: dict[str, int] = Field(
        default={}, description="By operator, the number of timers that were dropped at the end of its input."
    )
    watermarks: dict[str, ShownWatermarks] = Field(
        default={}, description="Watermarks of the epoch, by event-time declaration and by operator."
    )
    next_due: ShownDue | None = Field(
        default=None,
        description="Next time that opens an epoch without input; null: only input or a command opens one.",
    )
    in_flight: dict[str, int] | None = Field(
        default=None,
        description="By loop, the number of records in flight after the epoch; null without loops, before the epoch is "
        "prepared, and when its manifest can no longer be read.",
    )
    durations: EpochDurations | None = Field(
        default=None,
        description="Durations of the epoch's steps, which the driver reports within seconds; null before the first "
        "report, and for epochs of version 0.1.0.",
    )
    collected_at: datetime | None = None
    """Time at which garbage collection removed the snapshot's files."""
    started_at: datetime
    prepared_at: datetime | None = None
    committed_at: datetime | None = None

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


class EpochCounts(_Record):
    """Counts of an epoch, for display: rows in and out, changed state rows, and bytes of their deltas.

    ``late_rows`` by operator and ``rejected_rows`` by event-time declaration: rows that were read and dropped.
    ``dropped_timers`` by operator: timers that had no time to fire after the end of its input. The JSON form omits
    these three when they are empty.
    """

    rows_in: int = 0
    rows_out: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: dict[str, int] = {}
    rejected_rows: dict[str, int] = {}
    dropped_timers: dict[str, int] = {}

    @model_serializer(mode="wrap")
    def _without_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        counts: dict[str, Any] = serialize(self)
        return {name: value for name, value in counts.items() if value != {}}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # That of the fields: the serializer only omits some.
        return handler(cast(CoreSchema, {name: part for name, part in schema.items() if name != "serialization"}))


class EpochRange(_Record):
    """Epoch numbers from ``first`` to ``last``, both included."""

    first: int
    last: int

    def __contains__(self, epoch: int) -> bool:
        return self.first <= epoch <= self.last


class Succession(_Record):
    """Branches of the same application that ran before a rollback, and that this branch takes over from.

    No two branches of an application use the same epoch number, so that a number in a sink identifies one epoch.
    """

    branches: tuple[str, ...]
    """All other branches of the application. None of their epochs is prepared and uncommitted."""
    left_behind: tuple[EpochRange, ...]
    """Epoch numbers of those branches that are not ancestors of this branch, in order."""
    last: int
    """Highest epoch number that any of them used."""
    move_aside: bool = False
    """True if sinks hide rows of ``left_behind`` from readers, as far as they can."""

    def is_left_behind(self, epoch: int) -> bool:
        return any(epoch in numbers for numbers in self.left_behind)


class RestorePoint(_Record):
    """The latest version of a table without epochs that a rollback leaves behind.

    ``version``: a version of a Delta table, or the id of a snapshot of an Iceberg table; ``None``: no such version
    exists, or, if ``unknown``, it could not be determined. ``reason``: why, as a part of a sentence."""

    version: str | None = None
    reason: str | None = None
    unknown: bool = False


class RecoveryPoint(_Record):
    """Start of an attempt (R1, R2): the branch's head and the unfinished epochs of earlier attempts."""

    application: str
    branch: str
    attempt: int
    head: ManifestReference | None
    """Latest prepared or committed snapshot of the lineage. Right after a fork it belongs to the parent branch;
    ``None`` before the first epoch."""
    prepared: Sequence[EpochRecord]
    """Prepared and uncommitted epochs of this branch, in order (R3)."""
    started: Sequence[EpochRecord]
    """Started and undecided epochs of this branch (R4)."""
    next_epoch: int
    """Larger than every epoch of all branches of the application, in any state."""
    first_epoch: int = 1
    """Smallest epoch of this branch, in any state; ``next_epoch`` if it has none."""
    begun: Change | None = None
    """First change of a branch that begins at a snapshot: ``fork``, ``rollback``, ``import`` or ``start``."""
    succession: Succession | None = None
    """Other branches of the application that have epochs; ``None`` if there are none."""
    catalog_time: datetime | None = None
    """Clock of the catalog's database when this was read; ``None``: the catalog has no clock."""


class Directive(_Record):
    """Instruction of the control plane to the running driver. Delivered repeatedly until ``complete`` answers it.

    ``savepoint``: run one epoch now if there is input, a time is due or records are in flight; commit, answer with the
    head. ``stop``: finish and commit the running epoch, answer with the head, exit. ``transaction``: its arguments are
    a :class:`TransactionOrder`. ``reconfigure``: continue with another version at an epoch boundary, see
    :class:`VersionOrder`. ``query``: change the standing queries from the next epoch on, see :class:`QueryCommand`.
    ``optimize``: compact the table of a sink beside the epochs, see :class:`OptimizeOrder`.
    """

    id: str
    kind: Literal["savepoint", "stop", "transaction", "reconfigure", "query", "optimize"]
    arguments: dict[str, Any] = {}


TransactionAction = Literal["retry", "commit", "abort"]


class TransactionOrder(_Record):
    """Order of an administrator for one sink's part of an epoch that is decided and not committed there.

    ``retry``: try now. ``commit``: it was applied by hand; count it as committed. ``abort``: drop its rows in this sink
    only. After the last two the sink lacks the rows that Epochal would have written; the lineage records this.
    """

    sink: str
    epoch: int
    action: TransactionAction
    by: str
    message: str | None = None


class OptimizeOrder(_Record):
    """Order to compact the small files of the table that a sink writes. Its result is an :class:`OptimizeResult`."""

    sink: str


class OptimizeResult(_Record):
    """Files and bytes that a compaction replaced and wrote; ``version``: the version of the table that shows it, null
    if nothing was compacted."""

    sink: str
    files_removed: int
    files_added: int
    bytes_removed: int
    bytes_added: int
    version: int | None


class VersionOrder(_Record):
    """Version with which a running driver continues."""

    version: int
    artifact: str
    """sha256 of the artifact."""
    filename: str
    """Original name of the artifact's file."""
    parameters: Parameters = {}
    configuration: dict[str, Any] = {}
    by: str
    message: str | None = None
    acceptance: Acceptance = NOTHING_ACCEPTED


QueryCommandKind = Literal["add", "pause", "resume", "drop"]


class QueryCommand(_Record):
    """Command on a standing query. ``number``: number of the command, ascending within the application and never
    reused; ``query``: number of the command that added the query. ``bound``: the bound text, as ``Query.json``.
    ``bound``, ``operator``, ``text`` and ``expires_at`` (microseconds of epoch time) are set for ``add`` only."""

    number: int
    kind: QueryCommandKind
    query: int
    by: str
    operator: str | None = None
    text: str | None = None
    bound: dict[str, Any] | None = None
    expires_at: int | None = None


class OpenTransaction(_Record):
    """One sink's part of an epoch that is decided and not committed there. ``error``, ``since``: why and since when its
    commit fails."""

    sink: str
    epoch: int
    rows: int
    error: str | None = None
    since: datetime | None = None


class DriverStatus(_Record):
    """Status of the driver, sent with each heartbeat."""

    phase: Literal["starting", "recovering", "running", "waiting", "stopping", "stopped", "failed"]
    detail: str | None = None
    """For display: ``waiting for sink out since ..``."""
    epoch: int | None = None
    transactions: tuple[OpenTransaction, ...] = ()


class Catalog(ABC):
    """The engine's view of the catalog, for one execution and attempt."""

    @abstractmethod
    def begin_attempt(self) -> RecoveryPoint:
        """R1, R2. Make this attempt the current one, which fences every earlier one, and return its starting point."""

    @abstractmethod
    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        """E1. Insert the row ``started``, if the attempt is current and ``parent`` is the latest prepared epoch."""

    @abstractmethod
    def prepare_epoch(
        self,
        epoch: int,
        parent: EpochKey | None,
        manifest: ManifestReference,
        counts: EpochCounts,
        terms: EpochTerms = AS_THE_EXECUTION,
    ) -> None:
        """E4, the commit decision: compare-and-set ``started -> prepared``, guarded by parent and attempt."""

    @abstractmethod
    def commit_epoch(self, epoch: int) -> None:
        """E6. ``prepared -> committed``; only after the parent is committed."""

    @abstractmethod
    def abort_epoch(self, epoch: int, failure: Failure) -> None:
        """``started -> aborted``, with the reason. Refused (``Conflict``) for a prepared epoch."""

    @abstractmethod
    def epoch(self, epoch: int) -> EpochRecord | None:
        """Read one row back, to resolve an unknown outcome."""

    @abstractmethod
    def heartbeat(self, status: DriverStatus) -> Sequence[Directive]:
        """Report that the driver is alive, and return its open directives. Raises ``Fenced``."""

    def report(self, report: DriverReport) -> None:  # noqa: B027 a catalog may drop reports
        """Store the measurements of the attempt. A report may be lost; nothing depends on it.

        Raises ``Fenced``, ``CatalogUnavailable``.
        """

    @abstractmethod
    def complete(
        self,
        directive: str,
        head: ManifestReference | None,
        failure: Failure | None = None,
        result: OptimizeResult | None = None,
    ) -> None:
        """Answer a directive: it has been carried out, with ``result`` for ``optimize``, or ``failure`` is the reason
        why not. Idempotent."""

    def note_progress(self, directive: str, progress: str) -> None:  # noqa: B027 a catalog may drop it
        """Report the progress of a directive, for display. Called from any thread. A note may be lost.

        Raises ``Fenced``, ``CatalogUnavailable``, and ``NotFound`` at a control plane without this call.
        """

    @abstractmethod
    def finish(self, failure: Failure | None) -> None:
        """End the attempt: normally (stopped, or bounded sources have ended), or with the failure. Idempotent."""
