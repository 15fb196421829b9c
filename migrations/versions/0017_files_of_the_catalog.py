"""Artifacts and uploads lie in the store, where every control plane finds them, and the catalog names their files.

The files themselves are moved by the control planes that have them, when they start.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    with op.batch_alter_table("artifacts") as artifacts:
        artifacts.add_column(sa.Column("path", sa.String(length=300), nullable=True))
        artifacts.add_column(sa.Column("uploaded_at", sa.DateTime(timezone=True), nullable=True))
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
    op.create_index("ix_store_files_expires_at", "store_files", ["expires_at"])
    op.create_index("ix_store_files_owner", "store_files", ["kind", "owner", "position"])
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
