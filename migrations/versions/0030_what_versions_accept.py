"""The changes of meaning and the partial columns that a version accepts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.add_column("versions", sa.Column("acceptance", sa.JSON(), nullable=True))
