"""Add the application of an audited call, and indexes for the filters of the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from epochal.migrations.expanding import Index

revision = "0006"
down_revision = "0005"
indexes = (
    Index("ix_audit_token", "audit", ("project", "token", "id")),
    Index("ix_audit_action", "audit", ("project", "action", "id")),
    Index("ix_audit_application", "audit", ("project", "application", "id")),
    Index("ix_audit_at", "audit", ("project", "at")),
)


def upgrade() -> None:
    with op.batch_alter_table("audit") as audit:
        audit.add_column(sa.Column("application", sa.String(length=63), nullable=True))
