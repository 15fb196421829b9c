"""Which token made a call, and from where: names of tokens can be given again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("audit", sa.Column("token_id", sa.String(100), nullable=True))
    op.add_column("audit", sa.Column("address", sa.String(64), nullable=True))
