"""Projects: what is there belongs to ``default``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from epochal.migrations.expanding import Index

revision = "0028"
down_revision = "0027"

indexes = (
    Index("ix_applications_project", "applications", ("project",)),
    Index("ix_operations_project", "operations", ("project", "id")),
    Index("ix_audit_project", "audit", ("project", "id")),
    Index("ix_project_artifacts_sha256", "project_artifacts", ("sha256",)),
)
_OF_A_PROJECT = ("applications", "operations", "tokens", "uploads", "webhooks", "audit")


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("name", sa.String(20), nullable=False),
        sa.Column("applications", sa.Integer(), nullable=True),
        sa.Column("running", sa.Integer(), nullable=True),
        sa.Column("subtasks", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.create_table(
        "project_artifacts",
        sa.Column("project", sa.String(20), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("filename", sa.String(255), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project", "sha256", name=op.f("pk_project_artifacts")),
    )
    for table in _OF_A_PROJECT:
        op.add_column(table, sa.Column("project", sa.String(20), server_default="default", nullable=False))
