"""Nodes: which control planes and query nodes a catalog has."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
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
