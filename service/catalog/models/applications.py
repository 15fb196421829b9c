"""What an application is, and what it runs: its code, versions, branches, executions and attempts."""

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

from epochal.service.catalog.models.base import Base, Json


class Artifact(Base):
    """``path`` of its bytes in the store; null in the catalog of ``epochal run``, which reads the code where it lies.
    ``uploaded_at``: time of the last upload."""

    __tablename__ = "artifacts"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    path: Mapped[str | None] = mapped_column(String(300))
    uploaded_at: Mapped[datetime]


class ProjectArtifact(Base):
    """A project that may use an artifact: it was uploaded there, or imported with a bundle."""

    __tablename__ = "project_artifacts"

    project: Mapped[str] = mapped_column(String(20), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True, index=True)
    filename: Mapped[str] = mapped_column(String(255))
    created_at: Mapped[datetime]


class Application(Base):
    """``name`` is the full one, with the project's before a dot unless that is ``default`` (``wire/projects.py``).

    ``execution`` is the latest execution, whose state is the application's; none: ``created``.

    ``branch`` and ``execution`` are not foreign keys: they would make a cycle, which SQLite cannot create or drop.
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
    """``graph`` is a ``GraphDescription``; without sinks' targets it could not be checked when forked.

    ``failure``: the upgrade to it failed; no start will use it. ``acceptance``: an ``Acceptance``, with which its first
    epoch goes on from the head of that time; null: nothing is accepted.
    """

    __tablename__ = "versions"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.sha256"))
    parameters: Mapped[Json]
    configuration: Mapped[Json]
    graph: Mapped[Json | None]
    failure: Mapped[Json | None]
    acceptance: Mapped[Json | None]
    message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class Branch(Base):
    """A line of snapshots. ``head``: latest prepared or committed epoch, of the parent's line right after a fork.

    ``origin``: of an import, where it came from.

    ``attempt`` is the latest that has begun, or was given up; it fences all before it. While ``owned``, its driver may
    write; afterwards nobody may, until a later attempt begins. ``last_attempt`` is the last number given out.

    ``committed_epochs`` and ``aborted_epochs`` count this branch's own; who changes an epoch's state counts it. So are
    ``rows_in``, ``rows_out``, ``state_rows`` and ``state_bytes`` the sums of its committed epochs that ran here.
    ``attempts`` counts all of its executions, ``restarts`` those that followed another one of their execution.
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


class LeftOut(Base):
    """How many rows or timers a branch's own epochs left out in all, so that nobody has to add up its history.

    ``kind``: ``late`` and ``dropped`` by operator, ``rejected`` by declaration of event time. Who commits an epoch adds
    what it left out; imported epochs ran elsewhere, and are not added.
    """

    __tablename__ = "left_out"

    branch: Mapped[str] = mapped_column(ForeignKey("branches.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    place: Mapped[str] = mapped_column(String(200), primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger)


class Aborted(Base):
    """How many epochs of a branch were aborted for a cause (``domain/failures.py``). Who aborts an epoch counts it."""

    __tablename__ = "aborted"

    branch: Mapped[str] = mapped_column(ForeignKey("branches.id"), primary_key=True)
    cause: Mapped[str] = mapped_column(String(32), primary_key=True)
    total: Mapped[int] = mapped_column(BigInteger)


class Report(Base):
    """What the drivers of an application have measured: the ``latest`` report, of one attempt, and the totals of those
    ``before``. No foreign key: it may be lost, and holds up nobody."""

    __tablename__ = "driver_reports"

    application: Mapped[str] = mapped_column(String(32), primary_key=True)
    execution: Mapped[str] = mapped_column(String(32))
    attempt: Mapped[int]
    before: Mapped[Json]
    latest: Mapped[Json]
    reported_at: Mapped[datetime]


class Execution(Base):
    """One run of an application version. ``attempt`` is the last attempt that was given out, 0 before the first."""

    __tablename__ = "executions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    application: Mapped[str] = mapped_column(String(32))
    version: Mapped[int]
    branch: Mapped[str] = mapped_column(ForeignKey("branches.id"))
    state: Mapped[str] = mapped_column(String(16), index=True)
    attempt: Mapped[int]
    available_now: Mapped[bool]
    drain: Mapped[bool]
    """It takes what its sources have when it starts, and ends."""
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
        # At most one execution of an application is not over.
        Index(
            "uq_executions_active",
            "application",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
    )


class Attempt(Base):
    """``token_sha256`` belongs to the driver of this attempt; the token is never stored."""

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
    """The inbox of an application; its row is the lock of what comes in, so that numbers are seen in their order.

    ``last``: the highest number that was given to a call. ``accepted``: how many calls there have been in all.
    """

    __tablename__ = "inboxes"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger)
    accepted: Mapped[int] = mapped_column(BigInteger)


class InboxBatch(Base):
    """Calls of one entry that came together: the numbers ``first`` to ``last``, without a gap.

    ``accepted``: as of the inbox, with these. ``content``: ``{"request_ids": [..], "arguments": [..]}``, the arguments
    of each call as the JSON text of an object.
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
    """The call with a request id, of which an application has one. ``digest``: of its entry and arguments."""

    __tablename__ = "inbox_calls"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    request_id: Mapped[str] = mapped_column(String(200), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    entry: Mapped[str] = mapped_column(String(63))
    digest: Mapped[bytes] = mapped_column(LargeBinary)
