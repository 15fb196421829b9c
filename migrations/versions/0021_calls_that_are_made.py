"""Who makes a call that has an Idempotency-Key, and whether it has had an effect."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("idempotency_keys", sa.Column("holder", sa.String(length=32), nullable=True))
    op.add_column("idempotency_keys", sa.Column("acted_at", sa.DateTime(timezone=True), nullable=True))
