"""What drivers report of themselves, why epochs were aborted, and sums of each branch. They count from now on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from epochal.migrations.expanding import Index

revision = "0018"
down_revision = "0017"
indexes = (Index("ix_operations_finished_at", "operations", ("finished_at",)),)

SUMS = ("rows_in", "rows_out", "state_rows", "state_bytes", "attempts", "restarts")


def upgrade() -> None:
    for name in SUMS:
        op.add_column("branches", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "aborted",
        sa.Column("branch", sa.String(80), nullable=False),
        sa.Column("cause", sa.String(32), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["branch"], ["branches.id"], name=op.f("fk_aborted_branch")),
        sa.PrimaryKeyConstraint("branch", "cause", name=op.f("pk_aborted")),
    )
    op.create_table(
        "driver_reports",
        sa.Column("application", sa.String(32), nullable=False),
        sa.Column("execution", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("latest", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("application", name=op.f("pk_driver_reports")),
    )
