"""An index by which operations that wait to be carried out are found, each second, among all that there ever were."""

from __future__ import annotations

from epochal.migrations.expanding import Index

revision = "0020"
down_revision = "0019"
indexes = (Index("ix_operations_running", "operations", ("kind", "id"), where="state = 'running'"),)


def upgrade() -> None:
    pass
