"""Which nodes have tried an operation and found no space for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("operations", sa.Column("without_room", sa.JSON(), nullable=True))
