"""The catalog's tables. Migrations make exactly these (a test compares).

The row of a branch is the lock of its line: every write of the epoch protocol updates it first, naming the attempt, so
that writes of one branch are in one order and a fenced attempt finds zero rows. Attempt numbers rise along a branch,
also across executions, because sinks fence by them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from epochal.service.catalog.types import UtcDateTime

Json = dict[str, Any]
JsonList = list[Any]


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        datetime: UtcDateTime(),
        Json: JSON(none_as_null=True),
        JsonList: JSON(none_as_null=True),
    }


class Artifact(Base):
    __tablename__ = "artifacts"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class Application(Base):
    """``execution`` is the latest execution, whose state is the application's; none: ``created``.

    ``branch`` and ``execution`` are not foreign keys: they would make a cycle, which SQLite cannot create or drop.
    """

    __tablename__ = "applications"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
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

    ``failure``: the upgrade to it failed; no start will use it.
    """

    __tablename__ = "versions"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifacts.sha256"))
    parameters: Mapped[Json]
    configuration: Mapped[Json]
    graph: Mapped[Json | None]
    failure: Mapped[Json | None]
    message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class Branch(Base):
    """A line of snapshots. ``head``: latest prepared or committed epoch, of the parent's line right after a fork.

    ``origin``: of an import, where it came from.

    ``attempt`` is the latest that has begun, or was given up; it fences all before it. While ``owned``, its driver may
    write; afterwards nobody may, until a later attempt begins. ``last_attempt`` is the last number given out.

    ``committed_epochs`` and ``aborted_epochs`` count this branch's own; who changes an epoch's state counts it.
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


class Epoch(Base):
    """One epoch of a branch; the transitions of its ``state`` are those of ``epochal.engine.epoch``.

    ``version`` ran it, ``changes`` took effect with it, and ``opened_for`` says why: known once it is prepared.
    ``late_rows``, ``rejected_rows``, ``dropped_timers`` and ``watermarks`` are of event time, by operator or
    declaration; ``next_due`` says what opens the next epoch without input.
    ``collected_at``: since when its snapshot cannot be read any more.
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
    )


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
    """A snapshot that is kept until it is unpinned."""

    __tablename__ = "snapshot_pins"

    branch: Mapped[str] = mapped_column(String(80), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), index=True)
    message: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))

    __table_args__ = (ForeignKeyConstraint(["branch", "epoch"], ["epochs.branch", "epochs.epoch"]),)


class SnapshotTag(Base):
    """A further name of a snapshot; it does not keep the snapshot."""

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
    """What somebody wrote about a snapshot."""

    __tablename__ = "snapshot_messages"

    branch: Mapped[str] = mapped_column(String(80), primary_key=True)
    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))

    __table_args__ = (ForeignKeyConstraint(["branch", "epoch"], ["epochs.branch", "epochs.epoch"]),)


class Operation(Base):
    """Long work that somebody asked for. ``arguments`` is the request, as far as it is needed to finish it.

    ``application`` is null for what concerns the whole store, and for an import that has not succeeded.
    """

    __tablename__ = "operations"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    application: Mapped[str | None] = mapped_column(ForeignKey("applications.id"))
    execution: Mapped[str | None] = mapped_column(ForeignKey("executions.id"), index=True)
    state: Mapped[str] = mapped_column(String(16))
    arguments: Mapped[Json]
    progress: Mapped[str | None] = mapped_column(Text)
    result: Mapped[Json | None]
    error: Mapped[Json | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint("state IN ('running', 'succeeded', 'failed')", name="state"),
        Index("ix_operations_created_at", "created_at", "id"),
    )


class Directive(Base):
    """What the control plane wants of a running driver; delivered with every heartbeat until it is completed."""

    __tablename__ = "directives"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    execution: Mapped[str] = mapped_column(ForeignKey("executions.id"))
    operation: Mapped[str | None] = mapped_column(ForeignKey("operations.id"))
    kind: Mapped[str] = mapped_column(String(16))
    arguments: Mapped[Json]
    head_branch: Mapped[str | None] = mapped_column(String(80))
    head_epoch: Mapped[int | None] = mapped_column(BigInteger)
    failure: Mapped[Json | None]
    created_at: Mapped[datetime]
    completed_at: Mapped[datetime | None]

    __table_args__ = (Index("ix_directives_execution", "execution", "completed_at"),)


class Token(Base):
    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    scope: Mapped[str] = mapped_column(String(16))
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    expires_at: Mapped[datetime | None]

    __table_args__ = (CheckConstraint("scope IN ('read', 'operate', 'admin')", name="scope"),)


class Supervisor(Base):
    """The control plane that supervises: one row, or none. ``holder`` is its process, ``folder`` its data folder's id.

    ``heartbeat_at`` is by the database's clock; the rest is for people.
    """

    __tablename__ = "supervisor"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    holder: Mapped[str] = mapped_column(String(32))
    folder: Mapped[str] = mapped_column(String(64))
    host: Mapped[str] = mapped_column(String(255))
    process: Mapped[int]
    data: Mapped[str] = mapped_column(Text)
    heartbeat_at: Mapped[datetime]

    __table_args__ = (CheckConstraint("id = 1", name="one"),)


class RevokedToken(Base):
    """The id of a token that was deleted or replaced. It is never accepted again, wherever its token turns up."""

    __tablename__ = "revoked_tokens"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    revoked_at: Mapped[datetime]
    revoked_by: Mapped[str] = mapped_column(String(100))


class AuditEntry(Base):
    """One mutating call, also a refused one. ``token`` is the token's name, never its secret."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    token: Mapped[str | None] = mapped_column(String(100))
    action: Mapped[str] = mapped_column(String(200))
    target: Mapped[str] = mapped_column(String(500))
    outcome: Mapped[int]
    request: Mapped[str] = mapped_column(String(64))


class IdempotencyKey(Base):
    """The stored answer to a mutating call. ``status`` is null while the first call is still being worked on."""

    __tablename__ = "idempotency_keys"

    token: Mapped[str] = mapped_column(String(32), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[int | None]
    headers: Mapped[Json | None]
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(index=True)
