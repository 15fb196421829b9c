"""Why an epoch was opened: input, a time that was due, records in flight, a command. Of earlier epochs nobody knows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    with op.batch_alter_table("epochs") as epochs:
        epochs.add_column(sa.Column("opened_for", sa.JSON(none_as_null=True), nullable=True))
