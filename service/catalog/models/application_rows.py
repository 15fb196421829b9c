"""Applications and their artifacts, versions, branches, executions, attempts and inboxes."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from epochal.service.catalog.models.base import Base, Json, JsonList


class Artifact(Base):
    """An uploaded pipeline. ``path``: location of its bytes in the store; null in a catalog of ``epochal run``, which
    reads the code from its original location. ``uploaded_at``: time of the last upload."""

    __tablename__ = "artifacts"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    path: Mapped[str | None] = mapped_column(String(300))
    uploaded_at: Mapped[datetime]


class ProjectArtifact(Base):
    """A project that may use an artifact, because it uploaded the artifact or imported it with a bundle."""

    __tablename__ = "project_artifacts"

    project: Mapped[str] = mapped_column(String(20), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True, index=True)
    filename: Mapped[str] = mapped_column(String(255))
    created_at: Mapped[datetime]


class Application(Base):
    """``name`` is the full name: prefixed by the project and a dot, except in project ``default``
    (``wire/projects.py``).

    ``execution`` is the latest execution; its state is the application's state. Null means ``created``.

    ``branch`` and ``execution`` are not foreign keys: they would form a cycle, which SQLite cannot create or drop.
    """

    __tablename__ = "applications"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    project: Mapped[str] = mapped_column(String(20), default="default", server_default="default", index=True)
    branch: Mapped[str] = mapped_column(String(80))
    execution: Mapped[str | None] = mapped_column(String(32))
    shadow: Mapped[bool]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    deleted_at: Mapped[datetime | None]

    __table_args__ = (
        Index(
            "uq_applications_name",
            "name",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )


class Version(Base):
    """One version of code and configuration. ``graph`` is a ``GraphDescription`` without its lines; the targets of its
    sinks are checked by forks. ``code_lines``: its lines, which nothing compares; null if none are known.

    ``failure``: the upgrade to this version failed, and no start uses it. ``acceptance``: the differences of state that
    were accepted for its first epoch (``Acceptance``); null if none.
    """

    __tablename__ = "versions"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.sha256"))
    parameters: Mapped[Json]
    configuration: Mapped[Json]
    graph: Mapped[Json | None]
    code_lines: Mapped[JsonList | None]
    failure: Mapped[Json | None]
    acceptance: Mapped[Json | None]
    message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))

    @property
    def described(self) -> Json | None:
        """The whole ``GraphDescription``."""
        return None if self.graph is None else {**self.graph, "lines": self.code_lines or []}


class Branch(Base):
    """A line of snapshots. ``head``: the latest prepared or committed epoch; right after a fork, an epoch of the
    parent.

    ``origin``: source of an imported branch.

    ``attempt`` is the latest attempt that has begun or was given up; it fences all earlier attempts. While ``owned`` is
    true, the driver of this attempt may write. When it is false, no driver may write until the next attempt begins.
    ``last_attempt`` is the highest number that was assigned.

    ``committed_epochs`` and ``aborted_epochs`` count the epochs of this branch only; each change of an epoch's state
    updates them. ``rows_in``, ``rows_out``, ``state_rows`` and ``state_bytes`` are sums over the committed epochs that
    ran here. ``attempts`` counts the attempts of all executions, ``restarts`` the attempts after the first of each
    execution.
    """

    __tablename__ = "branches"

    id: Mapped[str] = mapped_column(String(80), primary_key=True)
    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    parent_branch: Mapped[str | None] = mapped_column(String(80))
    parent_epoch: Mapped[int | None] = mapped_column(BigInteger)
    head_branch: Mapped[str | None] = mapped_column(String(80))
    head_epoch: Mapped[int | None] = mapped_column(BigInteger)
    attempt: Mapped[int] = mapped_column(Integer)
    owned: Mapped[bool]
    last_attempt: Mapped[int] = mapped_column(Integer)
    committed_epochs: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    aborted_epochs: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    rows_in: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    rows_out: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    state_rows: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    state_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    attempts: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    restarts: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    message: Mapped[str | None] = mapped_column(Text)
    origin: Mapped[Json | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))

    __table_args__ = (
        CheckConstraint("kind IN ('start', 'fork', 'rollback', 'import', 'rekey')", name="kind"),
        CheckConstraint("(parent_branch IS NULL) = (parent_epoch IS NULL)", name="parent"),
        CheckConstraint("(head_branch IS NULL) = (head_epoch IS NULL)", name="head"),
        Index("ix_branches_parent", "parent_branch", "parent_epoch"),
    )


class SkippedTotals(Base):
    """Totals of skipped rows and timers of a branch's own epochs, so that its history need not be read.

    ``kind``: ``late`` and ``dropped`` by operator, ``rejected`` by declaration of event time. Committing an epoch adds
    its counts. Imported epochs are not counted.
    """

    __tablename__ = "skipped_totals"

    branch: Mapped[str] = mapped_column(ForeignKey("branches.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    place: Mapped[str] = mapped_column(String(200), primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger)


class Aborted(Base):
    """Number of aborted epochs of a branch by cause (``domain/failures.py``). Aborting an epoch increments it."""

    __tablename__ = "aborted"

    branch: Mapped[str] = mapped_column(ForeignKey("branches.id"), primary_key=True)
    cause: Mapped[str] = mapped_column(String(32), primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger)


class Report(Base):
    """Measurements of an application's drivers: ``latest``, the last report of the current attempt, and ``before``, the
    totals of earlier attempts. Without a foreign key: reports may be lost and must not block other writes."""

    __tablename__ = "driver_reports"

    application: Mapped[str] = mapped_column(String(32), primary_key=True)
    execution: Mapped[str] = mapped_column(String(32))
    attempt: Mapped[int]
    before: Mapped[Json]
    latest: Mapped[Json]
    reported_at: Mapped[datetime]


class Execution(Base):
    """One run of an application version. ``attempt`` is the latest attempt; 0 before the first one.

    ``available_now``: process the input available at the start, then end. ``drain``: commit a last epoch when all input
    has ended.
    """

    __tablename__ = "executions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    application: Mapped[str] = mapped_column(String(32))
    version: Mapped[int]
    branch: Mapped[str] = mapped_column(ForeignKey("branches.id"))
    state: Mapped[str] = mapped_column(String(16), index=True)
    attempt: Mapped[int]
    available_now: Mapped[bool]
    drain: Mapped[bool]
    status: Mapped[Json | None]
    failure: Mapped[Json | None]
    heartbeat_at: Mapped[datetime | None]
    stop_requested_at: Mapped[datetime | None]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]

    __table_args__ = (
        ForeignKeyConstraint(["application", "version"], ["versions.application", "versions.number"]),
        CheckConstraint("state IN ('starting', 'running', 'stopping', 'stopped', 'failed')", name="state"),
        Index("ix_executions_application_started_at", "application", "started_at"),
        # An application has at most one active execution.
        Index(
            "uq_executions_active",
            "application",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )


class Attempt(Base):
    """One driver of an execution. ``token_sha256``: hash of the driver's token; the token itself is not stored."""

    __tablename__ = "attempts"

    execution: Mapped[str] = mapped_column(ForeignKey("executions.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(String(16))
    token_sha256: Mapped[str | None] = mapped_column(String(64), unique=True)
    process: Mapped[str | None] = mapped_column(String(200))
    failure: Mapped[Json | None]
    started_at: Mapped[datetime]
    begun_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]

    __table_args__ = (CheckConstraint("state IN ('running', 'ended', 'lost', 'failed')", name="state"),)


class Inbox(Base):
    """Inbox of an application. Its row is locked while calls are added, so that numbers become visible in order.

    ``last``: the highest number assigned to a call. ``accepted``: total number of calls.
    """

    __tablename__ = "inboxes"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger)
    accepted: Mapped[int] = mapped_column(BigInteger)


class InboxBatch(Base):
    """Calls of one entry that were added together: numbers ``first`` to ``last``, without gaps.

    ``accepted``: total number of calls of the inbox, including these. ``content``: ``{"request_ids": [..], "arguments":
    [..]}``, where the arguments of each call are the JSON text of an object.
    """

    __tablename__ = "inbox_batches"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    first: Mapped[int] = mapped_column(BigInteger)
    entry: Mapped[str] = mapped_column(String(63))
    calls: Mapped[int]
    accepted: Mapped[int] = mapped_column(BigInteger)
    content: Mapped[str] = mapped_column(Text)
    accepted_at: Mapped[datetime]

    __table_args__ = (Index("ix_inbox_batches_accepted_at", "accepted_at"),)


class InboxCall(Base):
    """A call with a request id, which is unique within an application. ``digest``: hash of its entry and arguments."""

    __tablename__ = "inbox_calls"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    request_id: Mapped[str] = mapped_column(String(200), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    entry: Mapped[str] = mapped_column(String(63))
    digest: Mapped[bytes] = mapped_column(LargeBinary)
