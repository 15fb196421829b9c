"""What the control plane keeps for itself: work that was asked for, who supervises, who may call, who has called."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from epochal.service.catalog.models.base import Base, Json, JsonList


class Project(Base):
    """Quotas: null is none. ``default`` has no row until somebody gives it quotas. One that was deleted stays, so that
    nobody is given its name, and with it its history."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    applications: Mapped[int | None]
    running: Mapped[int | None]
    subtasks: Mapped[int | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    deleted_at: Mapped[datetime | None]


class Operation(Base):
    """Long work that somebody asked for. ``arguments`` is the request, as far as it is needed to finish it.

    ``application`` is null for what concerns the whole store, and for an import that has not succeeded.
    ``claim_holder`` carries it out until ``claim_until`` (by the database's clock) at least. Between
    ``cancel_requested_at`` and the end its state is ``running``: what it uses is kept until all is swept.
    ``without_room``: the nodes, by id, that have tried it and found no space for it, each with what people call it.
    """

    __tablename__ = "operations"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project: Mapped[str] = mapped_column(String(20), default="default", server_default="default")
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
    claim_holder: Mapped[str | None] = mapped_column(String(400))
    claim_until: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    cancel_requested_by: Mapped[str | None] = mapped_column(String(100))
    without_room: Mapped[Json | None]

    __table_args__ = (
        CheckConstraint("state IN ('running', 'succeeded', 'failed', 'cancelled')", name="state"),
        CheckConstraint("(claim_holder IS NULL) = (claim_until IS NULL)", name="claim"),
        Index("ix_operations_created_at", "created_at", "id"),
        Index("ix_operations_project", "project", "id"),
        Index("ix_operations_finished_at", "finished_at"),
        Index(
            "ix_operations_running",
            "kind",
            "id",
            sqlite_where=text("state = 'running'"),
            postgresql_where=text("state = 'running'"),
        ),
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


class QueryCommandRow(Base):
    """A command on the standing queries of an application. ``number`` ascends, and is never used again; ``query``: the
    number of the command that added it."""

    __tablename__ = "query_commands"

    application: Mapped[str] = mapped_column(ForeignKey("applications.id"), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(16))
    query: Mapped[int] = mapped_column(BigInteger)
    operation: Mapped[str] = mapped_column(ForeignKey("operations.id"))
    text: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class Lease(Base):
    """What at most one process holds at a time, until ``expires_at``. All times are by the database's clock.

    ``term`` rises with each holder, and never falls: a row stays when its lease was released. ``holder`` is one object
    in one process; host, boot and process are for people, and say whether it is gone.
    """

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    holder: Mapped[str] = mapped_column(String(32))
    term: Mapped[int] = mapped_column(BigInteger)
    host: Mapped[str] = mapped_column(String(255))
    boot: Mapped[str] = mapped_column(String(100))
    process: Mapped[str] = mapped_column(String(100))
    acquired_at: Mapped[datetime]
    renewed_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class NodeRow(Base):
    """A control plane or query node that is there, or was until ``heartbeat_at`` (by the database's clock)."""

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))
    version: Mapped[str] = mapped_column(String(64))
    host: Mapped[str] = mapped_column(String(255))
    boot: Mapped[str] = mapped_column(String(64))
    process: Mapped[int]
    public_url: Mapped[str] = mapped_column(Text)
    internal_url: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]

    __table_args__ = (CheckConstraint("role IN ('control', 'query')", name="role"),)


class Installation(Base):
    """What this catalog is: one row, made by the first start.

    ``id`` stays for ever; each restore makes another ``incarnation``, so that what was before it is recognised. Both
    stand in the store, too (``snapshots/ownership.py``). ``store``: where that was at the last start.
    ``oldest_reader``: the oldest version of Epochal that can work on these tables. ``cursor_key``: the secret with
    which all control planes and query nodes sign cursors; null until a start makes it.
    """

    __tablename__ = "installation"

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(String(32))
    incarnation: Mapped[str] = mapped_column(String(32))
    store: Mapped[str | None] = mapped_column(Text)
    oldest_reader: Mapped[str | None] = mapped_column(String(32))
    cursor_key: Mapped[bytes | None] = mapped_column(LargeBinary)
    restored_from: Mapped[str | None] = mapped_column(Text)
    restored_at: Mapped[datetime | None]
    created_at: Mapped[datetime]

    __table_args__ = (CheckConstraint("number = 1", name="one"),)


class Token(Base):
    """``name`` is the full one, as an application's. ``roles``: by name of project, which is ``project`` alone."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    project: Mapped[str] = mapped_column(String(20), default="default", server_default="default")
    roles: Mapped[Json]
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    expires_at: Mapped[datetime | None]


class RevokedToken(Base):
    """The id of a token that was deleted or replaced. It is never accepted again, wherever its token turns up."""

    __tablename__ = "revoked_tokens"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    revoked_at: Mapped[datetime]
    revoked_by: Mapped[str] = mapped_column(String(100))


class AuditEntry(Base):
    """One mutating call, also a refused one. ``token`` is the token's name, never its secret; ``address`` the other end
    of the connection, or whom a proxy that is believed names.
    ``changes``: what the call has changed, as ``audited_changes.py`` has it."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    at: Mapped[datetime]
    project: Mapped[str] = mapped_column(String(20), default="default", server_default="default")
    token: Mapped[str | None] = mapped_column(String(100))
    token_id: Mapped[str | None] = mapped_column(String(100))
    address: Mapped[str | None] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(200))
    target: Mapped[str] = mapped_column(String(500))
    outcome: Mapped[int]
    request: Mapped[str] = mapped_column(String(64))
    changes: Mapped[Json | None]

    __table_args__ = (Index("ix_audit_project", "project", "id"),)


class EventStream(Base):
    """The numbers of one application's events, and the lock under which they are given: see ``catalog/events.py``.

    ``application`` is a name, so that an application made anew goes on with its predecessor's numbers; empty for what
    concerns none. The row ``*`` has the positions in the stream of all. Events up to ``expired`` are gone.
    """

    __tablename__ = "event_streams"

    application: Mapped[str] = mapped_column(String(63), primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger)
    expired: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")


class LoggedEvent(Base):
    """One event. ``data`` is JSON in one line, as listeners get it.

    ``position`` is its place in the stream of all applications; null until it has one.
    """

    __tablename__ = "events"

    application: Mapped[str] = mapped_column(String(63), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    position: Mapped[int | None] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(String(32))
    at: Mapped[datetime]
    data: Mapped[str] = mapped_column(Text)

    __table_args__ = (
        Index("uq_events_position", "position", unique=True),
        Index(
            "ix_events_without_position",
            "application",
            "number",
            sqlite_where=text("position IS NULL"),
            postgresql_where=text("position IS NULL"),
        ),
    )


class StoreFile(Base):
    """A file of the store that belongs to no branch. Its row is there before the file is, and until after.

    ``owner`` is what it is of: an artifact's sha256, an upload's or operation's id, a log's execution and attempt.
    ``position``: where its bytes begin in that. ``bytes``: null while it may not be whole. From ``expires_at`` on, by
    the database's clock, it is deleted, and nobody can make it an owner's any more.
    """

    __tablename__ = "store_files"

    path: Mapped[str] = mapped_column(String(300), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    owner: Mapped[str] = mapped_column(String(80))
    position: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int | None] = mapped_column(BigInteger)
    expires_at: Mapped[datetime | None] = mapped_column(index=True)

    __table_args__ = (Index("ix_store_files_owner", "kind", "owner", "position"),)


class Upload(Base):
    """A bundle that arrives in parts, which are files of the store: ``received`` bytes of it are there."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project: Mapped[str] = mapped_column(String(20), default="default", server_default="default")
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    received: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    expires_at: Mapped[datetime]


class Webhook(Base):
    """Where what happens is posted to. ``kinds``, ``applications``: what of it; null: of all of its project.

    ``next_at``: no delivery before; a control plane that delivers puts it ahead, so that no other one does.
    ``failing_since``: the first of the ``failures`` in a row. ``secret`` is kept as it is: it signs.
    """

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    project: Mapped[str] = mapped_column(String(20), default="default", server_default="default")
    url: Mapped[str] = mapped_column(Text)
    kinds: Mapped[JsonList]
    applications: Mapped[JsonList | None]
    secret: Mapped[str] = mapped_column(String(200))
    failures: Mapped[int]
    failing_since: Mapped[datetime | None]
    last_error: Mapped[str | None] = mapped_column(Text)
    delivered_at: Mapped[datetime | None]
    next_at: Mapped[datetime]
    dropped: Mapped[int] = mapped_column(BigInteger)
    disabled_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))


class WebhookDelivery(Base):
    """What a webhook has not taken yet. No foreign key: who commits an epoch never waits for, or fails by, a webhook
    that is being deleted."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    webhook: Mapped[str] = mapped_column(String(32))
    event: Mapped[str] = mapped_column(String(200))
    kind: Mapped[str] = mapped_column(String(32))
    body: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index("ix_webhook_deliveries_webhook", "webhook", "id"),)


class IdempotencyKey(Base):
    """The stored answer to a mutating call. ``status`` is null while there is none.

    Until then ``holder`` makes the call; ``created_at`` is when it last said so. ``acted_at``: when a transaction of
    the call landed. ``holder`` null, and no answer: nobody makes it, and it may have had an effect."""

    __tablename__ = "idempotency_keys"

    token: Mapped[str] = mapped_column(String(32), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    request_sha256: Mapped[str] = mapped_column(String(64))
    status: Mapped[int | None]
    headers: Mapped[Json | None]
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(index=True)
    holder: Mapped[str | None] = mapped_column(String(32))
    acted_at: Mapped[datetime | None]
