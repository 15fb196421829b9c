"""What tokens may do, by project."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("roles", sa.JSON(), nullable=True))
