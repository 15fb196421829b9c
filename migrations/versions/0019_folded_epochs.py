"""Ranges of epochs that are past, instead of a row for each; and indexes by which a lineage finds its edges."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from epochal.migrations.expanding import Index

revision = "0019"
down_revision = "0018"
indexes = (
    Index("ix_epochs_branch_prepared_at", "epochs", ["branch", "prepared_at", "epoch"]),
    Index("ix_epochs_branch_version", "epochs", ["branch", "version", "epoch"]),
    Index("ix_epochs_with_changes", "epochs", ["branch", "epoch"], where="changes IS NOT NULL"),
)


def upgrade() -> None:
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
        sa.ForeignKeyConstraint(["branch"], ["branches.id"], name=op.f("fk_folded_epochs_branch")),
        sa.ForeignKeyConstraint(["execution"], ["executions.id"], name=op.f("fk_folded_epochs_execution")),
        sa.PrimaryKeyConstraint("branch", "first", name=op.f("pk_folded_epochs")),
    )
