"""The history of state: versions and changes by epoch, collected snapshots, pins, tags, messages, rollback, import."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    with op.batch_alter_table("versions") as versions:
        versions.add_column(sa.Column("failure", _JSON, nullable=True))
        versions.add_column(sa.Column("message", sa.Text(), nullable=True))
    with op.batch_alter_table("branches") as branches:
        branches.add_column(sa.Column("origin", _JSON, nullable=True))
        branches.drop_constraint(op.f("ck_branches_kind"), type_="check")
        branches.create_check_constraint(
            op.f("ck_branches_kind"), "kind IN ('start', 'fork', 'rollback', 'import', 'rekey')"
        )
    with op.batch_alter_table("epochs") as epochs:
        epochs.add_column(sa.Column("version", sa.Integer(), nullable=True))
        epochs.add_column(sa.Column("changes", _JSON, nullable=True))
        epochs.add_column(sa.Column("collected_at", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("operations") as operations:
        operations.alter_column("application", existing_type=sa.String(length=32), nullable=True)
    op.execute(
        "UPDATE epochs SET version = (SELECT version FROM executions WHERE executions.id = epochs.execution) "
        "WHERE state IN ('prepared', 'committed')"
    )
    op.create_table(
        "snapshot_pins",
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("application", sa.String(length=32), nullable=False),
        *_said(),
        sa.PrimaryKeyConstraint("branch", "epoch", name=op.f("pk_snapshot_pins")),
        _of_application("snapshot_pins"),
        _of_epoch("snapshot_pins"),
    )
    op.create_index(op.f("ix_snapshot_pins_application"), "snapshot_pins", ["application"])
    op.create_table(
        "snapshot_tags",
        sa.Column("application", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        *_said(),
        sa.PrimaryKeyConstraint("application", "name", name=op.f("pk_snapshot_tags")),
        _of_application("snapshot_tags"),
        _of_epoch("snapshot_tags"),
    )
    op.create_index("ix_snapshot_tags_branch_epoch", "snapshot_tags", ["branch", "epoch"])
    op.create_table(
        "snapshot_messages",
        sa.Column("branch", sa.String(length=80), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        *_said(nullable=False),
        sa.PrimaryKeyConstraint("branch", "epoch", name=op.f("pk_snapshot_messages")),
        _of_epoch("snapshot_messages"),
    )


def _said(*, nullable: bool = True) -> list[sa.Column[object]]:
    """What was said, when, by whom."""
    return [
        sa.Column("message", sa.Text(), nullable=nullable),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
    ]


def _of_application(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["application"], ["applications.id"], name=op.f(f"fk_{table}_application"))


def _of_epoch(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["branch", "epoch"], ["epochs.branch", "epochs.epoch"], name=op.f(f"fk_{table}_branch_epoch")
    )
