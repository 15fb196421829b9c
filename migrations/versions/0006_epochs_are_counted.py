"""How many epochs of each branch are committed and aborted, so that nobody has to count them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    with op.batch_alter_table("branches") as branches:
        branches.add_column(sa.Column("committed_epochs", sa.BigInteger(), nullable=False, server_default="0"))
        branches.add_column(sa.Column("aborted_epochs", sa.BigInteger(), nullable=False, server_default="0"))
    for state in ("committed", "aborted"):
        op.execute(
            f"UPDATE branches SET {state}_epochs = "
            f"(SELECT count(*) FROM epochs WHERE epochs.branch = branches.id AND epochs.state = '{state}')"
        )
