"""What a call has changed, from before to after, in its entry of the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.add_column("audit", sa.Column("changes", sa.JSON(), nullable=True))
