"""Of epochs the dropped timers and when the next is due; of branches how many rows and timers were left out in all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

KINDS = {"late": "late_rows", "rejected": "rejected_rows"}
"""Those of earlier epochs."""


def upgrade() -> None:
    with op.batch_alter_table("epochs") as epochs:
        for name in ("dropped_timers", "next_due"):
            epochs.add_column(sa.Column(name, sa.JSON(none_as_null=True), nullable=True))
    totals = op.create_table(
        "left_out",
        sa.Column("branch", sa.String(80), sa.ForeignKey("branches.id"), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("place", sa.String(200), primary_key=True),
        sa.Column("total", sa.BigInteger(), nullable=False),
    )
    rows = [{"branch": b, "kind": k, "place": p, "total": total} for (b, k, p), total in _totals().items()]
    if rows:
        op.bulk_insert(totals, rows)


def _totals() -> dict[tuple[str, str, str], int]:
    """Of committed epochs, by branch, kind and place."""
    epochs = sa.table(
        "epochs",
        sa.column("branch", sa.String),
        sa.column("state", sa.String),
        *(sa.column(name, sa.JSON(none_as_null=True)) for name in KINDS.values()),
    )
    found: dict[tuple[str, str, str], int] = {}
    committed = sa.select(epochs).where(epochs.c.state == "committed")
    for row in op.get_bind().execute(committed.execution_options(yield_per=1000)).mappings():
        for kind, column in KINDS.items():
            for place, total in (row[column] or {}).items():
                key = row["branch"], kind, place
                found[key] = found.get(key, 0) + total
    return found
