"""Event time by epoch: late rows by operator, rejected rows and watermarks by declaration. Earlier epochs had none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    with op.batch_alter_table("epochs") as epochs:
        for name in ("late_rows", "rejected_rows", "watermarks"):
            epochs.add_column(sa.Column(name, sa.JSON(none_as_null=True), nullable=True))
