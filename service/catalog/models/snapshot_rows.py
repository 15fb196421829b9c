"""Epochs, and the annotations of their snapshots."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from epochal.service.catalog.models.base import Base, Json, JsonList


class Epoch(Base):
    """One epoch of a branch; ``epochal.engine.epoch`` defines the transitions of ``state``.

    ``version`` ran the epoch, ``changes`` took effect with it, and ``opened_for`` gives the reasons why it was opened;
    all three are set when it is prepared. ``late_rows``, ``rejected_rows``, ``dropped_timers`` and ``watermarks``
    concern event time, by operator or declaration. ``next_due``: what opens the next epoch if there is no input.
    ``calls_through``: number of the last call of an entry that was taken by this epoch or an earlier one.
    ``durations``: ``EpochDurations``, as last reported by the driver. ``collected_at``: time at which its snapshot was
    collected.
    """

    __tablename__ = "epochs"

    branch: Mapped[str] = mapped_column(ForeignKey("branches.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    execution: Mapped[str] = mapped_column(ForeignKey("executions.id"))
    attempt: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    parent_branch: Mapped[str | None] = mapped_column(String(80))
    parent_epoch: Mapped[int | None] = mapped_column(BigInteger)
    manifest_path: Mapped[str | None] = mapped_column(String(1000))
    manifest_sha256: Mapped[str | None] = mapped_column(String(64))
    failure: Mapped[Json | None]
    rows_in: Mapped[int | None] = mapped_column(BigInteger)
    rows_out: Mapped[int | None] = mapped_column(BigInteger)
    state_rows: Mapped[int | None] = mapped_column(BigInteger)
    state_bytes: Mapped[int | None] = mapped_column(BigInteger)
    version: Mapped[int | None]
    changes: Mapped[JsonList | None]
    opened_for: Mapped[JsonList | None]
    late_rows: Mapped[Json | None]
    rejected_rows: Mapped[Json | None]
    dropped_timers: Mapped[Json | None]
    watermarks: Mapped[Json | None]
    next_due: Mapped[Json | None]
    calls_through: Mapped[int | None] = mapped_column(BigInteger)
    durations: Mapped[Json | None]
    collected_at: Mapped[datetime | None]
    started_at: Mapped[datetime]
    prepared_at: Mapped[datetime | None]
    committed_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint("state IN ('started', 'prepared', 'committed', 'aborted')", name="state"),
        CheckConstraint(
            "state NOT IN ('prepared', 'committed') OR (manifest_path IS NOT NULL AND manifest_sha256 IS NOT NULL)",
            name="manifest",
        ),
        CheckConstraint("(parent_branch IS NULL) = (parent_epoch IS NULL)", name="parent"),
        Index("ix_epochs_branch_state", "branch", "state", "epoch"),
        Index("ix_epochs_branch_prepared_at", "branch", "prepared_at", "epoch"),
        Index("ix_epochs_branch_version", "branch", "version", "epoch"),
        Index(
            "ix_epochs_with_changes",
            "branch",
            "epoch",
            sqlite_where=text("changes IS NOT NULL"),
            postgresql_where=text("changes IS NOT NULL"),
        ),
    )


class FoldedEpochs(Base):
    """A range of epochs of a branch, ``first`` to ``last`` without gaps, which replaces their rows. ``aborted`` of them
    were aborted; the others were committed by ``execution`` with ``version``, and collected. If the range has committed
    epochs, the adjacent rows belong to committed epochs and are kept. Counts are sums.

    ``first_committed``: null if the first epoch was committed, or none was. If none was committed, the times are those
    at which the first and the last epoch were opened.
    """

    __tablename__ = "folded_epochs"

    branch: Mapped[str] = mapped_column(ForeignKey("branches.id"), primary_key=True)
    first: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    last: Mapped[int] = mapped_column(BigInteger)
    execution: Mapped[str] = mapped_column(ForeignKey("executions.id"))
    version: Mapped[int | None]
    rows_in: Mapped[int] = mapped_column(BigInteger)
    rows_out: Mapped[int] = mapped_column(BigInteger)
    state_rows: Mapped[int] = mapped_column(BigInteger)
    state_bytes: Mapped[int] = mapped_column(BigInteger)
    committed_from: Mapped[datetime]
    committed_until: Mapped[datetime]
    collected_at: Mapped[datetime]
    aborted: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    first_committed: Mapped[int | None] = mapped_column(BigInteger)

    @property
    def committed(self) -> int:
        """Number of committed epochs."""
        return self.last - self.first + 1 - self.aborted

    @property
    def oldest(self) -> int:
        """The first committed epoch, if there is one."""
        return self.first if self.first_committed is None else self.first_committed


class Savepoint(Base):
    __tablename__ = "savepoints"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    branch: Mapped[str] = mapped_column(String(80))
    epoch: Mapped[int] = mapped_column(BigInteger)
    message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))

    __table_args__ = (
        ForeignKeyConstraint(["branch", "epoch"], ["epochs.branch", "epochs.epoch"]),
        Index("ix_savepoints_branch_epoch", "branch", "epoch"),
    )


class SnapshotPin(Base):
    """A snapshot that is retained until it is unpinned."""

    __tablename__ = "snapshot_pins"

    branch: Mapped[str] = mapped_column(String(80), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), index=True)
    message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))

    __table_args__ = (ForeignKeyConstraint(["branch", "epoch"], ["epochs.branch", "epochs.epoch"]),)


class SnapshotTag(Base):
    """An additional name of a snapshot. A tag does not prevent expiry."""

    __tablename__ = "snapshot_tags"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    branch: Mapped[str] = mapped_column(String(80))
    epoch: Mapped[int] = mapped_column(BigInteger)
    message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))

    __table_args__ = (
        ForeignKeyConstraint(["branch", "epoch"], ["epochs.branch", "epochs.epoch"]),
        Index("ix_snapshot_tags_branch_epoch", "branch", "epoch"),
    )


class SnapshotMessage(Base):
    """A message about a snapshot."""

    __tablename__ = "snapshot_messages"

    branch: Mapped[str] = mapped_column(String(80), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))

    __table_args__ = (ForeignKeyConstraint(["branch", "epoch"], ["epochs.branch", "epochs.epoch"]),)
