"""Operations are claimed for a while, and can be cancelled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

BOOKKEEPING = ("process", "beat")
"""Arguments of operations on the whole store in which their claims were kept."""


def upgrade() -> None:
    with op.batch_alter_table("operations") as operations:
        operations.add_column(sa.Column("claim_holder", sa.String(length=400), nullable=True))
        operations.add_column(sa.Column("claim_until", sa.DateTime(timezone=True), nullable=True))
        operations.add_column(sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True))
        operations.add_column(sa.Column("cancel_requested_by", sa.String(length=100), nullable=True))
        operations.drop_constraint(op.f("ck_operations_state"), type_="check")
        operations.create_check_constraint(
            op.f("ck_operations_state"), "state IN ('running', 'succeeded', 'failed', 'cancelled')"
        )
        operations.create_check_constraint(
            op.f("ck_operations_claim"), "(claim_holder IS NULL) = (claim_until IS NULL)"
        )
    _forget_bookkeeping()


def _forget_bookkeeping() -> None:
    """What runs is claimed by nobody then: the control plane that migrates begins it again."""
    operations = sa.table(
        "operations",
        sa.column("id", sa.String),
        sa.column("kind", sa.String),
        sa.column("arguments", sa.JSON(none_as_null=True)),
    )
    connection = op.get_bind()
    of_the_store = sa.select(operations.c.id, operations.c.arguments).where(
        operations.c.kind.in_(["collect", "verify"])
    )
    for id, arguments in connection.execute(of_the_store).all():
        kept = {name: value for name, value in arguments.items() if name not in BOOKKEEPING}
        connection.execute(sa.update(operations).where(operations.c.id == id).values(arguments=kept))
