"""Epochs, snapshots and their annotations, savepoints, open transactions."""

from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict, Field

from epochal.contracts.catalog import EpochRecord, ManifestReference
from epochal.wire.bodies import Answer, Body, Message, Name, Page


class FoldedRange(Answer):
    """Contiguous expired epochs ``first`` to ``last`` of one branch and version, of which ``aborted`` were aborted.
    Counts are sums. If all were aborted, the times are the start times of the first and the last one."""

    branch: str
    first: int
    last: int
    version: int | None
    rows_in: int
    rows_out: int
    state_rows: int
    state_bytes: int
    committed_from: datetime
    committed_until: datetime
    aborted: int = 0

    @property
    def committed(self) -> int:
        """Number of committed epochs."""
        return self.last - self.first + 1 - self.aborted


class EpochPage(Page[EpochRecord]):
    """``folded``: ranges between the items or before the last one, newest first."""

    folded: list[FoldedRange] = Field(default_factory=list)


LONGEST_NAME = 200
"""Maximum length of a snapshot's name in characters."""


class CreatePin(Body):
    message: Message | None = None


class CreateTag(Body):
    """``move``: move the tag if another snapshot has it."""

    name: Name
    message: Message | None = None
    move: bool = False


class WriteMessage(Body):
    """A message, which replaces the previous one."""

    message: Message


class _Annotation(Answer):
    branch: str
    epoch: int
    created_at: datetime
    created_by: str


class SnapshotPinAnswer(_Annotation):
    """A pin, which prevents the expiry of a snapshot."""

    message: str | None


class SnapshotTagAnswer(_Annotation):
    """A tag of a snapshot. Tags do not prevent expiry."""

    name: str
    message: str | None


class SnapshotMessageAnswer(_Annotation):
    message: str


class Annotations(Answer):
    """All annotations of one snapshot."""

    pin: SnapshotPinAnswer | None = None
    tags: tuple[SnapshotTagAnswer, ...] = ()
    message: SnapshotMessageAnswer | None = None


class SnapshotAnswer(Answer):
    """The members of the manifest (format 1: application, branch, epoch, parent, slices, tables, deltas, bases, sinks,
    changes, counts, ..), ``reference``: its location in the store, and ``annotations``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format: int
    application: str
    branch: str
    epoch: int
    reference: ManifestReference
    annotations: Annotations


class CreateSavepoint(Body):
    name: Name
    message: Message | None = None


class SavepointManifest(Answer):
    path: str
    sha256: str


class SavepointAnswer(Answer):
    """A named snapshot, which does not expire."""

    name: str
    branch: str
    epoch: int
    manifest: SavepointManifest
    message: str | None
    created_at: datetime
    created_by: str


class KeyGroupSizes(Answer):
    """Sizes of the key groups of a state table in the files of a snapshot, to find skew.

    Rows that were deleted or replaced since the last compaction count, too. Key group `g` belongs to subtask
    `g % parallelism` of the operator."""

    table: str
    operator: str
    branch: str
    epoch: int
    parallelism: int
    rows: list[int] = Field(description="Number of rows of each key group, from 0 to `max_parallelism` - 1.")
    bytes: list[int] = Field(description="Number of compressed bytes of each key group.")
    files: int = Field(description="Number of files of the table.")
    files_read: int = Field(
        description="Number of files that were counted: at most 2,000; the oldest deltas are left out."
    )


class TransactionDecision(Body):
    message: Message | None = None


class TransactionAnswer(Answer):
    """The transaction of one sink in a prepared epoch.

    ``waiting_since`` and ``error``: time and reason of a failed commit; null while the commit is in progress or no
    driver runs. ``driver``: reported by a running driver; otherwise read from the manifest, and the sink may have
    committed it already.
    """

    branch: str
    epoch: int
    sink: str
    rows: int
    prepared_at: datetime | None
    waiting_since: datetime | None
    error: str | None
    driver: bool


class TransactionsAnswer(Answer):
    """Transactions by epoch and sink. A running driver reports the first 100."""

    items: list[TransactionAnswer]
