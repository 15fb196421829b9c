"""A test-only migration after the newest one: an expanding migration that uses every kind of deferred step."""

from __future__ import annotations

from pathlib import Path

from epochal.service.catalog.migration import newest_revision

REVISION = "9999"
_FILE = f"{REVISION}_annotate_operations.py"
_CODE = f'''
import sqlalchemy as sa
from alembic import op
from epochal.migrations.expanding import Index, add_check, add_foreign_key

revision = "{REVISION}"
down_revision = "{{previous}}"
indexes = (Index("ix_operations_note", "operations", ("note", "id"), where="note IS NOT NULL"),)


def upgrade() -> None:
    with op.batch_alter_table("operations") as operations:
        operations.add_column(sa.Column("note", sa.Text(), nullable=True))
        operations.add_column(sa.Column("artifact", sa.String(64), nullable=True))
    add_check("operations", "ck_operations_note", "note <> ''")
    add_foreign_key("operations", "fk_operations_artifact", ["artifact"], "artifacts", ["sha256"])
'''


def add_next_migration(folder: Path, more: str = "") -> str:
    """Write the migration into ``folder``, a copy of ``migrations``, and return its revision. ``more``: further
    lines."""
    (folder / "versions" / _FILE).write_text(_CODE.format(previous=newest_revision()) + more)
    return REVISION
