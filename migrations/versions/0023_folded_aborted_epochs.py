"""Ranges of folded epochs of which some, or all, were aborted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("folded_epochs", sa.Column("aborted", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("folded_epochs", sa.Column("first_committed", sa.BigInteger(), nullable=True))
