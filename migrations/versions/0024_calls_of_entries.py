"""Calls of applications' entries: inboxes, and how far each epoch has come in them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from epochal.migrations.expanding import Index

revision = "0024"
down_revision = "0023"
indexes = (Index("ix_inbox_batches_accepted_at", "inbox_batches", ["accepted_at"]),)


def upgrade() -> None:
    op.add_column("epochs", sa.Column("calls_through", sa.BigInteger(), nullable=True))
    op.create_table(
        "inboxes",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("accepted", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_inboxes_application")),
        sa.PrimaryKeyConstraint("application", name=op.f("pk_inboxes")),
    )
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
