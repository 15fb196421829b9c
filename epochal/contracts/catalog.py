"""The catalog as the engine sees it: the few guarded writes of the epoch protocol.

One object serves one (execution, attempt). Every write is guarded by the attempt: after a later attempt has begun, each
raises ``Fenced``. Writes are single compare-and-sets with three outcomes: returns (landed), raises (certainly not), or
raises ``OutcomeUnknown`` / ``CatalogUnavailable`` (unknown: call again; a repeated write that had landed returns).

``Fenced`` is certain too: a write whose effect stands in the catalog (the row is prepared with this very manifest)
returns as landed even when a later attempt has begun since; so after ``Fenced`` the files of the write may be removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from epochal.contracts.conditions import END, Trigger, Watermarks, as_datetime
from epochal.contracts.configuration import NOTHING_ACCEPTED, Acceptance, Parameters
from epochal.contracts.identity import EpochKey, StorePath
from epochal.contracts.measurements import DriverReport
from epochal.secrets import redact


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


EpochState = Literal["started", "prepared", "committed", "aborted"]


class ManifestReference(_Record):
    """Where a snapshot is: the manifest's path, relative to the store's root, and the sha256 of its bytes."""

    branch: str
    epoch: int
    path: StorePath
    sha256: str

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


Shown = Annotated[str, AfterValidator(redact)]


class Failure(_Record):
    """Why an epoch was aborted or an attempt failed. ``traceback`` is the author's own, where their code raised."""

    type: str
    message: Shown
    step: str | None = None
    traceback: Shown | None = None


class Change(_Record):
    """A reconfiguration that took effect with an epoch: ``start``, ``fork``, ``rollback``, ``import``, ``rescale``,
    ``rekey``, ``upgrade``, ``parameters``, ``sinks``, ``configuration``, ``transaction``, ``queries``. ``detail`` says
    from what to what."""

    kind: str
    detail: dict[str, Any] = {}


class ShownWatermarks(_Record):
    """Watermarks for people. ``None``: not known yet, or, where ``ended``, that nothing more will come."""

    late: datetime | None = Field(default=None, description="Rows from before were late.")
    fire: datetime | None = Field(
        default=None, description="The watermark: what was due by then (windows, timers) came out in the epoch."
    )
    idle: bool = Field(default=False, description="Nothing came for so long that it holds up nobody.")
    ended: bool = Field(default=False, description="The sources are exhausted: all rows have come.")

    @classmethod
    def of(cls, watermarks: Watermarks) -> ShownWatermarks:
        late, fire = as_datetime(watermarks.late), as_datetime(watermarks.fire)
        return cls(late=late, fire=fire, idle=watermarks.idle, ended=watermarks.fire == END)


class ShownDue(_Record):
    """What opens the next epoch by itself, for people."""

    at: datetime | None = Field(
        description="The epoch opens then, or as soon as a driver runs; null: beyond all dates."
    )
    operator: str = Field(description="The operator that waits.")
    clock: Literal["event", "processing"] = Field(
        description="What it waits for: its watermark, which moves then because sources are idle or because what the "
        "epoch read counts in the next; or the time of epochs."
    )
    until: datetime | None = Field(description="The time by that clock; null: beyond all dates.")


class EpochTerms(_Record):
    """Under what an epoch ran. ``version`` is the number of the application version; ``None``: its execution's.

    With another version than its execution's, the epoch's prepare makes that the execution's: the upgrade is decided
    together with its first epoch, and a later attempt runs the version that the head was made by.
    """

    version: int | None = None
    changes: tuple[Change, ...] = ()
    opened_for: tuple[Trigger, ...] = ()
    watermarks: dict[str, ShownWatermarks] = {}
    next_due: ShownDue | None = None
    calls_through: int | None = Field(default=None, exclude=True)
    """The number of the last call of its entries that was taken; ``None``: it took none. It travels beside the others,
    since an earlier control plane does not know it."""


AS_THE_EXECUTION = EpochTerms()
"""The version of its execution, and no change."""


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
    """Known once it is prepared: ``input``, a time that was ``due``, records ``in_flight`` in a loop, a ``command``, or
    that all input had ended (``drain``): nothing follows then."""
    late_rows: dict[str, int] = Field(
        default={}, description="By operator its late rows, which it left out; they went to its late stream."
    )
    rejected_rows: dict[str, int] = Field(
        default={}, description="By declaration of event time the rows that had none, or one too far in the future."
    )
    dropped_timers: dict[str, int] = Field(
        default={}, description="By operator the timers that were dropped when its input had ended."
    )
    watermarks: dict[str, ShownWatermarks] = Field(
        default={}, description="By declaration of event time and by operator, what the epoch ran with."
    )
    next_due: ShownDue | None = Field(
        default=None, description="What opens the next epoch without input; null: only input or a command can."
    )
    in_flight: dict[str, int] | None = Field(
        default=None,
        description="By loop the records in flight after the epoch; null where there are no loops, before the epoch is "
        "prepared, and where its manifest cannot be read any more.",
    )
    collected_at: datetime | None = None
    """When garbage collection removed the snapshot's files."""
    started_at: datetime
    prepared_at: datetime | None = None
    committed_at: datetime | None = None

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


class EpochCounts(_Record):
    """What an epoch read, wrote and changed, for people: rows in and out, state rows changed and their delta bytes.

    ``late_rows`` by operator and ``rejected_rows`` by declaration of event time, where there were any: rows that were
    read and left out. ``dropped_timers`` by operator: timers that the end of its input left without a time to fire at.
    JSON leaves these three out when they are empty.
    """

    rows_in: int = 0
    rows_out: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: dict[str, int] = {}
    rejected_rows: dict[str, int] = {}
    dropped_timers: dict[str, int] = {}

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        counts: dict[str, Any] = serialize(self)
        return {name: value for name, value in counts.items() if value != {}}


class EpochRange(_Record):
    """Epoch numbers from ``first`` to ``last``, both included."""

    first: int
    last: int

    def __contains__(self, epoch: int) -> bool:
        return self.first <= epoch <= self.last


class Succession(_Record):
    """What a branch takes over from other branches of its application: those that ran before a rollback.

    No two branches of an application use the same epoch number, so that a number that a sink shows is one epoch.
    """

    branches: tuple[str, ...]
    """All of the application but this one. No epoch of theirs is prepared and not committed."""
    left_behind: tuple[EpochRange, ...]
    """Numbers of theirs that this branch does not stand on, in order."""
    last: int
    """The highest number that any of them used."""
    move_aside: bool = False
    """Whether sinks that can shall hide what they show of ``left_behind`` from readers."""

    def is_left_behind(self, epoch: int) -> bool:
        return any(epoch in numbers for numbers in self.left_behind)


class RecoveryPoint(_Record):
    """What an attempt starts from (R1, R2): the branch's head and what earlier attempts left unfinished."""

    application: str
    branch: str
    attempt: int
    head: ManifestReference | None
    """Latest prepared or committed snapshot of the lineage; of another branch right after a fork; None at the start."""
    prepared: Sequence[EpochRecord]
    """Of this branch, prepared and not committed, in epoch order (R3)."""
    started: Sequence[EpochRecord]
    """Of this branch, started and never decided (R4)."""
    next_epoch: int
    """Larger than every epoch of this branch and of its application's other branches, whatever their state."""
    first_epoch: int = 1
    """The smallest epoch of this branch, whatever its state; ``next_epoch`` when there is none yet."""
    begun: Change | None = None
    """How the branch began, where it stands on a snapshot: ``fork``, ``rollback``, ``import`` or ``start``."""
    succession: Succession | None = None
    """Other branches of the application, if there are any with epochs."""
    catalog_time: datetime | None = None
    """The clock of the catalog's database when this was read; ``None``: the catalog has no clock of its own."""


class Directive(_Record):
    """Something the control plane wants of the running driver. Delivered until it is answered by ``complete``.

    ``savepoint``: run one epoch now if there is input, a time is due or records are in flight; commit, answer with the
    head. ``stop``: finish and commit what is running, answer with the head, exit. ``transaction``: see
    :class:`TransactionOrder`, which is its arguments. ``reconfigure``: go on with another version at an epoch boundary,
    see :class:`VersionOrder`. ``query``: change the standing queries from the next epoch on, see :class:`QueryCommand`.
    """

    id: str
    kind: Literal["savepoint", "stop", "transaction", "reconfigure", "query"]
    arguments: dict[str, Any] = {}


TransactionAction = Literal["retry", "commit", "abort"]


class TransactionOrder(_Record):
    """What an administrator wants done with one sink's part of an epoch that is decided and not committed there.

    ``retry``: try now. ``commit``: it was applied by hand, so take it as committed. ``abort``: drop its rows, in this
    sink alone. The last two leave the sink without the rows that Epochal would have written; lineage says so.
    """

    sink: str
    epoch: int
    action: TransactionAction
    by: str
    message: str | None = None


class VersionOrder(_Record):
    """The version that a running driver shall go on with."""

    version: int
    artifact: str
    """sha256 of the artifact."""
    filename: str
    """Of the artifact, as its author called it."""
    parameters: Parameters = {}
    configuration: dict[str, Any] = {}
    by: str
    message: str | None = None
    acceptance: Acceptance = NOTHING_ACCEPTED


QueryCommandKind = Literal["add", "pause", "resume", "drop"]


class QueryCommand(_Record):
    """What is to become of a standing query. ``number``: of the command, ascending within the application, never used
    again; ``query``: the number of the command that added it. ``bound``: what the text means, as ``Query.json``; with
    ``operator``, ``text`` and ``expires_at`` (microseconds of epoch time) of ``add`` alone."""

    number: int
    kind: QueryCommandKind
    query: int
    by: str
    operator: str | None = None
    text: str | None = None
    bound: dict[str, Any] | None = None
    expires_at: int | None = None


class OpenTransaction(_Record):
    """One sink's part of an epoch that is decided and not committed there. ``error``, ``since``: why it cannot be."""

    sink: str
    epoch: int
    rows: int
    error: str | None = None
    since: datetime | None = None


class DriverStatus(_Record):
    """What the driver says of itself with each heartbeat."""

    phase: Literal["starting", "recovering", "running", "waiting", "stopping", "stopped", "failed"]
    detail: str | None = None
    """For people: ``waiting for sink out since ..``."""
    epoch: int | None = None
    transactions: tuple[OpenTransaction, ...] = ()


class Catalog(ABC):
    """The engine's view of the catalog, for one execution and attempt."""

    @abstractmethod
    def begin_attempt(self) -> RecoveryPoint:
        """R1, R2. Make this attempt the current one, which fences every earlier one; then read what it starts from."""

    @abstractmethod
    def open_epoch(self, epoch: int, parent: EpochKey | None) -> None:
        """E1. Row ``started``, guarded by attempt and by ``parent`` being the latest prepared epoch of the lineage."""

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
        """Report that the driver is alive; the answer is what it should do. Raises ``Fenced``."""

    def report(self, report: DriverReport) -> None:  # noqa: B027 not every catalog is asked what drivers measure
        """What the attempt has measured. Nothing depends on it: it may be lost, and where nobody asks it goes nowhere.

        Raises ``Fenced``, ``CatalogUnavailable``.
        """

    @abstractmethod
    def complete(self, directive: str, head: ManifestReference | None, failure: Failure | None = None) -> None:
        """A directive has been carried out (or could not be). Idempotent."""

    @abstractmethod
    def finish(self, failure: Failure | None) -> None:
        """The attempt ends: normally (stopped, or bounded sources exhausted), or failed with the reason. Idempotent."""
