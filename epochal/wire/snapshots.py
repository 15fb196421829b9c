from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict, Field

from epochal.contracts.catalog import EpochRecord, ManifestReference
from epochal.wire.bodies import Answer, Body, Message, Name, Page


class FoldedRange(Answer):
    """Epochs ``first`` to ``last`` of a branch, without a gap: ``aborted`` of them were aborted, the others committed,
    by one version, and have expired since. Of these the catalog keeps nothing else; the counts are sums. Where all were
    aborted, the times are those at which the first and the last of them began."""

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
        """How many were."""
        return self.last - self.first + 1 - self.aborted


class EpochPage(Page[EpochRecord]):
    """``folded``: ranges that lie between the items, or below the last of them, newest first."""

    folded: list[FoldedRange] = Field(default_factory=list)


LONGEST_NAME = 200
"""Characters of what names a snapshot."""


class CreatePin(Body):
    message: Message | None = None


class CreateTag(Body):
    """``move``: the tag may be another snapshot's, and is this one's from now on."""

    name: Name
    message: Message | None = None
    move: bool = False


class WriteMessage(Body):
    """It takes the place of an earlier one."""

    message: Message


class _Said(Answer):
    branch: str
    epoch: int
    created_at: datetime
    created_by: str


class SnapshotPinAnswer(_Said):
    """The snapshot is kept until it is unpinned."""

    message: str | None


class SnapshotTagAnswer(_Said):
    """A further name of a snapshot, which it does not keep: pin it, too."""

    name: str
    message: str | None


class SnapshotMessageAnswer(_Said):
    message: str


class Annotations(Answer):
    """All that was said of one snapshot."""

    pin: SnapshotPinAnswer | None = None
    tags: tuple[SnapshotTagAnswer, ...] = ()
    message: SnapshotMessageAnswer | None = None


class SnapshotAnswer(Answer):
    """The members of the manifest (format 1: application, branch, epoch, parent, slices, tables, deltas, bases, sinks,
    changes, counts, ..), ``reference``: where it is in the store, and ``annotations``: what people say of it."""

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
    """A snapshot with a name, kept until it is deleted."""

    name: str
    branch: str
    epoch: int
    manifest: SavepointManifest
    message: str | None
    created_at: datetime
    created_by: str


class TransactionDecision(Body):
    message: Message | None = None


class TransactionAnswer(Answer):
    """One sink's part of a prepared epoch.

    ``waiting_since`` and ``error``: since when and why it cannot be committed; both null while it is on its way, and
    while nothing runs. ``driver``: whether a running driver has said so; otherwise it is what the manifest names, and
    the sink may have committed it already, which the next start finds out.
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
    """By epoch and sink; there are at most ``max_uncommitted_epochs`` epochs."""

    items: list[TransactionAnswer]
