"""Commands on the standing queries of applications: their numbers are the ids of queries, and never used again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_table(
        "query_commands",
        sa.Column("application", sa.String(32), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("query", sa.BigInteger(), nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f("fk_query_commands_application")),
        sa.ForeignKeyConstraint(["operation"], ["operations.id"], name=op.f("fk_query_commands_operation")),
        sa.PrimaryKeyConstraint("application", "number", name=op.f("pk_query_commands")),
    )
