"""The calls of an inbox name their application, and are not compared with it one by one: their batch is."""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    with op.batch_alter_table("inbox_calls") as calls:
        calls.drop_constraint(op.f("fk_inbox_calls_application"), type_="foreignkey")
