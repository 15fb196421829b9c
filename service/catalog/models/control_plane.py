"""Tables of the control plane itself: projects, operations, leases, nodes, tokens, audit log, events, webhooks."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from epochal.service.catalog.models.base import Base, Json, JsonList


class Project(Base):
    """A project and its quotas; a null quota means unlimited. ``default`` has no row until it is given quotas. Rows of
    deleted projects are kept, so that their names, and thereby their histories, are not reused."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    applications: Mapped[int | None]
    running: Mapped[int | None]
    subtasks: Mapped[int | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(100))
    deleted_at: Mapped[datetime | None]


class Operation(Base):
    """A long-running request. ``arguments``: the part of the request that is needed to complete it.

    ``application`` is null for operations on the whole store, and for an import that has not succeeded. The process
    ``claim_holder`` carries the operation out, at least until ``claim_until`` (database clock). Between
    ``cancel_requested_at`` and the end the state is ``running``, so that its resources are retained until they are
    cleaned up. ``without_room``: nodes, by id, that had no disk space for the operation, with their display names.
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
    """A request to a running driver, delivered with every heartbeat until it is completed."""

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
    """A command on the standing queries of an application. ``number`` increases and is never reused. ``query``: the
    number of the command that added the query."""

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
    """A right that at most one process holds, until ``expires_at``. All times are by the database clock.

    ``term`` increases with each holder; the row is kept when the lease is released. ``holder`` identifies one object in
    one process. ``host``, ``boot`` and ``process`` are shown to people, and tell whether the holder still runs.
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
    """A control plane or query node that was alive at ``heartbeat_at`` (database clock)."""

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
    """Identity of this catalog: one row, created by the first start.

    ``id`` never changes. Each restore, and each copy of the store, assigns a new ``incarnation``, which identifies
    older catalogs and stores. Both are also in the store (``snapshots/ownership.py``). ``store``: location of the store
    at the last start.
    ``oldest_reader``: the oldest version of Epochal that can use these tables. ``cursor_key``: secret with which all
    control planes and query nodes sign cursors; null until the first start creates it.
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


class AuditEntry(Base):
    """One mutating call, including refused calls. ``token`` is the token's name, never its secret; ``address`` is the
    peer of the connection, or the caller named by a trusted proxy. ``changes``: what the call changed
    (``catalog/audit.py``). ``application``: name within the project; null for other resources."""

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
    application: Mapped[str | None] = mapped_column(String(63))

    __table_args__ = (
        Index("ix_audit_project", "project", "id"),
        Index("ix_audit_token", "project", "token", "id"),
        Index("ix_audit_action", "project", "action", "id"),
        Index("ix_audit_application", "project", "application", "id"),
        Index("ix_audit_at", "project", "at"),
    )


class EventStream(Base):
    """Sequence of one application's event numbers; its row is locked while numbers are assigned
    (``catalog/events.py``).

    ``application`` is a name, so that a new application with the same name continues the numbers; it is empty for
    events without an application. The row ``*`` holds the positions in the stream of all events. Events up to
    ``expired`` are deleted.
    """

    __tablename__ = "event_streams"

    application: Mapped[str] = mapped_column(String(63), primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger)
    expired: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")


class LoggedEvent(Base):
    """One event. ``data`` is JSON in one line, as it is sent to listeners.

    ``position`` is its place in the stream of all applications; null until it is assigned.
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
    """A file of the store that belongs to no branch. The row is created before the file and deleted after it.

    ``owner`` is an artifact's sha256, the id of an upload or operation, or a log's execution and attempt. ``position``:
    offset of the file's bytes in the owner's content. ``bytes``: null while the file may be incomplete. A file is
    deleted after ``expires_at`` (database clock), and can then no longer be assigned to an owner.
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
    """A bundle that is uploaded in parts, each a file of the store. ``received``: number of bytes stored so far."""

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
    """A subscription that posts events to a URL. ``kinds``, ``applications``: the selected events; null selects all of
    the project.

    ``next_at``: time of the next delivery; a control plane that delivers moves it ahead to exclude other control
    planes. ``failing_since``: time of the first of ``failures`` consecutive failures. ``secret`` is stored in plain
    text, because it signs deliveries.
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
    """An event that is not yet delivered to a webhook. Without a foreign key, so that committing an epoch neither waits
    for nor fails with the deletion of a webhook."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    webhook: Mapped[str] = mapped_column(String(32))
    event: Mapped[str] = mapped_column(String(200))
    kind: Mapped[str] = mapped_column(String(32))
    body: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index("ix_webhook_deliveries_webhook", "webhook", "id"),)


class IdempotencyKey(Base):
    """The stored answer to a mutating call. ``status`` is null until the call is answered.

    Until then ``holder`` makes the call and ``created_at`` is the last renewal of its claim. ``acted_at``: time at
    which a transaction of the call was committed. A row without holder and answer was abandoned and may have had an
    effect.
    """

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
