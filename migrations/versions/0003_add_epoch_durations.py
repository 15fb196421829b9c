"""Add the durations of an epoch's steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    with op.batch_alter_table("epochs") as epochs:
        epochs.add_column(sa.Column("durations", sa.JSON(), nullable=True))
