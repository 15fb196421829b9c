"""What a catalog is: its id, its incarnation, and the store that belongs to it. The next start makes the row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "installation",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("incarnation", sa.String(length=32), nullable=False),
        sa.Column("store", sa.Text(), nullable=True),
        sa.Column("oldest_reader", sa.String(length=32), nullable=True),
        sa.Column("restored_from", sa.Text(), nullable=True),
        sa.Column("restored_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_installation")),
        sa.CheckConstraint("number = 1", name=op.f("ck_installation_one")),
    )
