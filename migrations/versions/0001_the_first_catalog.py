"""The first catalog."""

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
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("execution", sa.String(length=32), nullable=True),
        sa.Column("shadow", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_applications")),
    )
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
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("token", sa.String(length=100), nullable=True),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("target", sa.String(length=500), nullable=False),
        sa.Column("outcome", sa.Integer(), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("token", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("scope IN ('read', 'operate', 'admin')", name=op.f("ck_tokens_scope")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("name", name=op.f("uq_tokens_name")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_tokens_secret_sha256")),
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
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.CheckConstraint("kind IN ('start', 'fork')", name=op.f("ck_branches_kind")),
        sa.CheckConstraint("(head_branch IS NULL) = (head_epoch IS NULL)", name=op.f("ck_branches_head")),
        sa.CheckConstraint("(parent_branch IS NULL) = (parent_epoch IS NULL)", name=op.f("ck_branches_parent")),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_branches_application")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_branches")),
    )
    op.create_index("ix_branches_application", "branches", ["application"], unique=False)
    op.create_index("ix_branches_parent", "branches", ["parent_branch", "parent_epoch"], unique=False)

    op.create_table(
        "versions",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("configuration", sa.JSON(), nullable=False),
        sa.Column("graph", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_versions_application")),
        sa.ForeignKeyConstraint(["artifact"], ["artifacts.sha256"], name=op.f("fk_versions_artifact")),
        sa.PrimaryKeyConstraint("application", "number", name=op.f("pk_versions")),
    )
    op.create_table(
        "executions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
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
    op.create_index("ix_executions_state", "executions", ["state"], unique=False)
    op.create_index(
        "uq_executions_active",
        "executions",
        ["application"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
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
    op.create_index("ix_epochs_branch_state", "epochs", ["branch", "state", "epoch"], unique=False)

    op.create_table(
        "operations",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("execution", sa.String(length=32), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('running', 'succeeded', 'failed')", name=op.f("ck_operations_state")),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_operations_application")),
        sa.ForeignKeyConstraint(["execution"], ["executions.id"], name=op.f("fk_operations_execution")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
    )
    op.create_index("ix_operations_created_at", "operations", ["created_at", "id"], unique=False)
    op.create_index("ix_operations_execution", "operations", ["execution"], unique=False)

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
