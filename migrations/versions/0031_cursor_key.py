"""The secret with which control planes and query nodes sign cursors. The next start makes it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.add_column("installation", sa.Column("cursor_key", sa.LargeBinary(), nullable=True))
