"""Executions that end with a last epoch when all of their input has ended, or without it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    with op.batch_alter_table("executions") as executions:
        executions.add_column(sa.Column("drain", sa.Boolean(), nullable=False, server_default=sa.true()))
    with op.batch_alter_table("executions") as executions:
        executions.alter_column("drain", existing_type=sa.Boolean(), server_default=None)
