"""Add links with which browsers sign in once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "session_links",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("code_sha256", sa.String(length=64), nullable=False),
        sa.Column("caller", sa.String(length=32), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=True),
        sa.Column("claims", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("session", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("session_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(token IS NULL) <> (claims IS NULL)", name=op.f("ck_session_links_login")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session_links")),
        sa.UniqueConstraint("code_sha256", name=op.f("uq_session_links_code_sha256")),
    )
    op.create_index(op.f("ix_session_links_caller"), "session_links", ["caller"], unique=False)
