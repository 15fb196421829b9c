"""Events, numbered per application. Those that a data folder's journal holds are brought in by the control plane that
has the folder, when it starts: see ``epochal/service/runtime/events/journal.py``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from epochal.migrations.expanding import Index

revision = "0014"
down_revision = "0013"
indexes = (
    Index("uq_events_position", "events", ["position"], unique=True),
    Index("ix_events_without_position", "events", ["application", "number"], where="position IS NULL"),
)


def upgrade() -> None:
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
