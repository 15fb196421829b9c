"""Create the catalog: all tables, constraints and indexes of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "applications",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("project", sa.String(length=20), server_default="default", nullable=False),
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("execution", sa.String(length=32), nullable=True),
        sa.Column("shadow", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_applications")),
    )
    op.create_index(op.f("ix_applications_project"), "applications", ["project"], unique=False)
    op.create_index(
        "uq_applications_name",
        "applications",
        ["name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "artifacts",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("path", sa.String(length=300), nullable=True),
        sa.Column("uploaded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project", sa.String(length=20), server_default="default", nullable=False),
        sa.Column("token", sa.String(length=100), nullable=True),
        sa.Column("token_id", sa.String(length=100), nullable=True),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("target", sa.String(length=500), nullable=False),
        sa.Column("outcome", sa.Integer(), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_project", "audit", ["project", "id"], unique=False)
    op.create_table(
        "driver_reports",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("execution", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("latest", sa.JSON(), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("application", name=op.f("pk_driver_reports")),
    )
    op.create_table(
        "event_streams",
        sa.Column("application", sa.String(length=63), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("expired", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("application", name=op.f("pk_event_streams")),
    )
    op.create_table(
        "events",
        sa.Column("application", sa.String(length=63), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("application", "number", name=op.f("pk_events")),
    )
    op.create_index(
        "ix_events_without_position",
        "events",
        ["application", "number"],
        unique=False,
        sqlite_where=sa.text("position IS NULL"),
        postgresql_where=sa.text("position IS NULL"),
    )
    op.create_index("uq_events_position", "events", ["position"], unique=True)
    op.create_table(
        "idempotency_keys",
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("holder", sa.String(length=32), nullable=True),
        sa.Column("acted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("token", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "installation",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("incarnation", sa.String(length=32), nullable=False),
        sa.Column("store", sa.Text(), nullable=True),
        sa.Column("oldest_reader", sa.String(length=32), nullable=True),
        sa.Column("cursor_key", sa.LargeBinary(), nullable=True),
        sa.Column("restored_from", sa.Text(), nullable=True),
        sa.Column("restored_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("number = 1", name=op.f("ck_installation_one")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_installation")),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("holder", sa.String(length=32), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("boot", sa.String(length=100), nullable=False),
        sa.Column("process", sa.String(length=100), nullable=False),
        sa.Column("acquired_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("renewed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("boot", sa.String(length=64), nullable=False),
        sa.Column("process", sa.Integer(), nullable=False),
        sa.Column("public_url", sa.Text(), nullable=False),
        sa.Column("internal_url", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("role IN ('control', 'query')", name=op.f("ck_nodes_role")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_table(
        "project_artifacts",
        sa.Column("project", sa.String(length=20), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "sha256", name=op.f("pk_project_artifacts")),
    )
    op.create_index(op.f("ix_project_artifacts_sha256"), "project_artifacts", ["sha256"], unique=False)
    op.create_table(
        "projects",
        sa.Column("name", sa.String(length=20), nullable=False),
        sa.Column("applications", sa.Integer(), nullable=True),
        sa.Column("running", sa.Integer(), nullable=True),
        sa.Column("subtasks", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.create_table(
        "revoked_tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_by", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revoked_tokens")),
    )
    op.create_table(
        "store_files",
        sa.Column("path", sa.String(length=300), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("owner", sa.String(length=80), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_store_files")),
    )
    op.create_index(op.f("ix_store_files_expires_at"), "store_files", ["expires_at"], unique=False)
    op.create_index("ix_store_files_owner", "store_files", ["kind", "owner", "position"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("project", sa.String(length=20), server_default="default", nullable=False),
        sa.Column("roles", sa.JSON(), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("name", name=op.f("uq_tokens_name")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_tokens_secret_sha256")),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=20), server_default="default", nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("webhook", sa.String(length=32), nullable=False),
        sa.Column("event", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index("ix_webhook_deliveries_webhook", "webhook_deliveries", ["webhook", "id"], unique=False)
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=20), server_default="default", nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("applications", sa.JSON(), nullable=True),
        sa.Column("secret", sa.String(length=200), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("dropped", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "branches",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("parent_branch", sa.String(length=80), nullable=True),
        sa.Column("parent_epoch", sa.BigInteger(), nullable=True),
        sa.Column("head_branch", sa.String(length=80), nullable=True),
        sa.Column("head_epoch", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("owned", sa.Boolean(), nullable=False),
        sa.Column("last_attempt", sa.Integer(), nullable=False),
        sa.Column("committed_epochs", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("aborted_epochs", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rows_in", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rows_out", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("state_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("restarts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("origin", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.CheckConstraint("kind IN ('start', 'fork', 'rollback', 'import', 'rekey')", name=op.f("ck_branches_kind")),
        sa.CheckConstraint("(head_branch IS NULL) = (head_epoch IS NULL)", name=op.f("ck_branches_head")),
        sa.CheckConstraint("(parent_branch IS NULL) = (parent_epoch IS NULL)", name=op.f("ck_branches_parent")),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_branches_application")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_branches")),
    )
    op.create_index(op.f("ix_branches_application"), "branches", ["application"], unique=False)
    op.create_index("ix_branches_parent", "branches", ["parent_branch", "parent_epoch"], unique=False)
    op.create_table(
        "inbox_batches",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("last", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("entry", sa.String(length=63), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_inbox_batches_application")),
        sa.PrimaryKeyConstraint("application", "last", name=op.f("pk_inbox_batches")),
    )
    op.create_index("ix_inbox_batches_accepted_at", "inbox_batches", ["accepted_at"], unique=False)
    op.create_table(
        "inbox_calls",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("request_id", sa.String(length=200), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("entry", sa.String(length=63), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_inbox_calls_application")),
        sa.PrimaryKeyConstraint("application", "request_id", name=op.f("pk_inbox_calls")),
    )
    op.create_table(
        "inboxes",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_inboxes_application")),
        sa.PrimaryKeyConstraint("application", name=op.f("pk_inboxes")),
    )
    op.create_table(
        "versions",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("configuration", sa.JSON(), nullable=False),
        sa.Column("graph", sa.JSON(), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("acceptance", sa.JSON(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_versions_application")),
        sa.ForeignKeyConstraint(["artifact"], ["artifacts.sha256"], name=op.f("fk_versions_artifact")),
        sa.PrimaryKeyConstraint("application", "number", name=op.f("pk_versions")),
    )
    op.create_table(
        "aborted",
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("cause", sa.String(length=32), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["branch"], ["branches.id"], name=op.f("fk_aborted_branch")),
        sa.PrimaryKeyConstraint("branch", "cause", name=op.f("pk_aborted")),
    )
    op.create_table(
        "executions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("available_now", sa.Boolean(), nullable=False),
        sa.Column("drain", sa.Boolean(), nullable=False),
        sa.Column("status", sa.JSON(), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stop_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('starting', 'running', 'stopping', 'stopped', 'failed')", name=op.f("ck_executions_state")
        ),
        sa.ForeignKeyConstraint(
            ["application", "version"],
            ["versions.application", "versions.number"],
            name=op.f("fk_executions_application_version"),
        ),
        sa.ForeignKeyConstraint(["branch"], ["branches.id"], name=op.f("fk_executions_branch")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_executions")),
    )
    op.create_index("ix_executions_application_started_at", "executions", ["application", "started_at"], unique=False)
    op.create_index(op.f("ix_executions_state"), "executions", ["state"], unique=False)
    op.create_index(
        "uq_executions_active",
        "executions",
        ["application"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "skipped_totals",
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("place", sa.String(length=200), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["branch"], ["branches.id"], name=op.f("fk_skipped_totals_branch")),
        sa.PrimaryKeyConstraint("branch", "kind", "place", name=op.f("pk_skipped_totals")),
    )
    op.create_table(
        "attempts",
        sa.Column("execution", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=True),
        sa.Column("process", sa.String(length=200), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('running', 'ended', 'lost', 'failed')", name=op.f("ck_attempts_state")),
        sa.ForeignKeyConstraint(["execution"], ["executions.id"], name=op.f("fk_attempts_execution")),
        sa.PrimaryKeyConstraint("execution", "number", name=op.f("pk_attempts")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_attempts_token_sha256")),
    )
    op.create_table(
        "epochs",
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("execution", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("parent_branch", sa.String(length=80), nullable=True),
        sa.Column("parent_epoch", sa.BigInteger(), nullable=True),
        sa.Column("manifest_path", sa.String(length=1000), nullable=True),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("rows_in", sa.BigInteger(), nullable=True),
        sa.Column("rows_out", sa.BigInteger(), nullable=True),
        sa.Column("state_rows", sa.BigInteger(), nullable=True),
        sa.Column("state_bytes", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("changes", sa.JSON(), nullable=True),
        sa.Column("opened_for", sa.JSON(), nullable=True),
        sa.Column("late_rows", sa.JSON(), nullable=True),
        sa.Column("rejected_rows", sa.JSON(), nullable=True),
        sa.Column("dropped_timers", sa.JSON(), nullable=True),
        sa.Column("watermarks", sa.JSON(), nullable=True),
        sa.Column("next_due", sa.JSON(), nullable=True),
        sa.Column("calls_through", sa.BigInteger(), nullable=True),
        sa.Column("collected_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("prepared_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('started', 'prepared', 'committed', 'aborted')", name=op.f("ck_epochs_state")),
        sa.CheckConstraint(
            "state NOT IN ('prepared', 'committed') OR (manifest_path IS NOT NULL AND manifest_sha256 IS NOT NULL)",
            name=op.f("ck_epochs_manifest"),
        ),
        sa.CheckConstraint("(parent_branch IS NULL) = (parent_epoch IS NULL)", name=op.f("ck_epochs_parent")),
        sa.ForeignKeyConstraint(["branch"], ["branches.id"], name=op.f("fk_epochs_branch")),
        sa.ForeignKeyConstraint(["execution"], ["executions.id"], name=op.f("fk_epochs_execution")),
        sa.PrimaryKeyConstraint("branch", "epoch", name=op.f("pk_epochs")),
    )
    op.create_index("ix_epochs_branch_prepared_at", "epochs", ["branch", "prepared_at", "epoch"], unique=False)
    op.create_index("ix_epochs_branch_state", "epochs", ["branch", "state", "epoch"], unique=False)
    op.create_index("ix_epochs_branch_version", "epochs", ["branch", "version", "epoch"], unique=False)
    op.create_index(
        "ix_epochs_with_changes",
        "epochs",
        ["branch", "epoch"],
        unique=False,
        sqlite_where=sa.text("changes IS NOT NULL"),
        postgresql_where=sa.text("changes IS NOT NULL"),
    )
    op.create_table(
        "folded_epochs",
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("first", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("execution", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("rows_in", sa.BigInteger(), nullable=False),
        sa.Column("rows_out", sa.BigInteger(), nullable=False),
        sa.Column("state_rows", sa.BigInteger(), nullable=False),
        sa.Column("state_bytes", sa.BigInteger(), nullable=False),
        sa.Column("committed_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("committed_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("collected_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("aborted", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("first_committed", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["branch"], ["branches.id"], name=op.f("fk_folded_epochs_branch")),
        sa.ForeignKeyConstraint(["execution"], ["executions.id"], name=op.f("fk_folded_epochs_execution")),
        sa.PrimaryKeyConstraint("branch", "first", name=op.f("pk_folded_epochs")),
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=20), server_default="default", nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("application", sa.String(length=32), nullable=True),
        sa.Column("execution", sa.String(length=32), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claim_holder", sa.String(length=400), nullable=True),
        sa.Column("claim_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_by", sa.String(length=100), nullable=True),
        sa.Column("without_room", sa.JSON(), nullable=True),
        sa.CheckConstraint(
            "state IN ('running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_operations_state")
        ),
        sa.CheckConstraint("(claim_holder IS NULL) = (claim_until IS NULL)", name=op.f("ck_operations_claim")),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_operations_application")),
        sa.ForeignKeyConstraint(["execution"], ["executions.id"], name=op.f("fk_operations_execution")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
    )
    op.create_index("ix_operations_created_at", "operations", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_operations_execution"), "operations", ["execution"], unique=False)
    op.create_index("ix_operations_finished_at", "operations", ["finished_at"], unique=False)
    op.create_index("ix_operations_project", "operations", ["project", "id"], unique=False)
    op.create_index(
        "ix_operations_running",
        "operations",
        ["kind", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_table(
        "directives",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("execution", sa.String(length=32), nullable=False),
        sa.Column("operation", sa.String(length=32), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("head_branch", sa.String(length=80), nullable=True),
        sa.Column("head_epoch", sa.BigInteger(), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["execution"], ["executions.id"], name=op.f("fk_directives_execution")),
        sa.ForeignKeyConstraint(["operation"], ["operations.id"], name=op.f("fk_directives_operation")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_directives")),
    )
    op.create_index("ix_directives_execution", "directives", ["execution", "completed_at"], unique=False)
    op.create_table(
        "query_commands",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("query", sa.BigInteger(), nullable=False),
        sa.Column("operation", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_query_commands_application")),
        sa.ForeignKeyConstraint(["operation"], ["operations.id"], name=op.f("fk_query_commands_operation")),
        sa.PrimaryKeyConstraint("application", "number", name=op.f("pk_query_commands")),
    )
    op.create_table(
        "savepoints",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_savepoints_application")),
        sa.ForeignKeyConstraint(
            ["branch", "epoch"], ["epochs.branch", "epochs.epoch"], name=op.f("fk_savepoints_branch_epoch")
        ),
        sa.PrimaryKeyConstraint("application", "name", name=op.f("pk_savepoints")),
    )
    op.create_index("ix_savepoints_branch_epoch", "savepoints", ["branch", "epoch"], unique=False)
    op.create_table(
        "snapshot_messages",
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(
            ["branch", "epoch"], ["epochs.branch", "epochs.epoch"], name=op.f("fk_snapshot_messages_branch_epoch")
        ),
        sa.PrimaryKeyConstraint("branch", "epoch", name=op.f("pk_snapshot_messages")),
    )
    op.create_table(
        "snapshot_pins",
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_snapshot_pins_application")),
        sa.ForeignKeyConstraint(
            ["branch", "epoch"], ["epochs.branch", "epochs.epoch"], name=op.f("fk_snapshot_pins_branch_epoch")
        ),
        sa.PrimaryKeyConstraint("branch", "epoch", name=op.f("pk_snapshot_pins")),
    )
    op.create_index(op.f("ix_snapshot_pins_application"), "snapshot_pins", ["application"], unique=False)
    op.create_table(
        "snapshot_tags",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_snapshot_tags_application")),
        sa.ForeignKeyConstraint(
            ["branch", "epoch"], ["epochs.branch", "epochs.epoch"], name=op.f("fk_snapshot_tags_branch_epoch")
        ),
        sa.PrimaryKeyConstraint("application", "name", name=op.f("pk_snapshot_tags")),
    )
    op.create_index("ix_snapshot_tags_branch_epoch", "snapshot_tags", ["branch", "epoch"], unique=False)
