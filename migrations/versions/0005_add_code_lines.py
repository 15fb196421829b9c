"""Add the lines of code that define the nodes of a version's graph."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    with op.batch_alter_table("versions") as versions:
        versions.add_column(sa.Column("code_lines", sa.JSON(), nullable=True))
