"""Executions that take what is available when they start, and end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    with op.batch_alter_table("executions") as executions:
        executions.add_column(sa.Column("available_now", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("executions") as executions:
        executions.alter_column("available_now", existing_type=sa.Boolean(), server_default=None)
