"""Rows of collected epochs that replace rows of the table by keys (``delta.sink(.., keys=..)``).

The library's ``merge`` runs in the driver and is copy on write: it rewrites each file that has a row of a key. The
marker is part of its commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import CommitProperties, PostCommitHookProperties

from epochal.errors import SchemaError


def latest_rows(batches: Iterable[pa.RecordBatch], keys: Sequence[str]) -> pa.Table | None:
    """The last row of each key, in the order of the batches; ``None`` without rows. Rows of an earlier version of the
    application, which lack a column, have null there."""
    held = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
    if not held:
        return None
    rows = pa.concat_tables(held, promote_options="default")
    numbered = rows.select(list(keys)).append_column("", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([("", "max")]).column("_max")
    return rows.take(last.combine_chunks().sort())


def merge(table: DeltaTable, rows: pa.Table, keys: Sequence[str], properties: CommitProperties) -> None:
    """Insert the rows, or replace those with the same keys, in one version on top of this one. Raises errors of the
    library."""
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in keys)
    written = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names}
    replaced = {name: value for name, value in written.items() if name not in map(_quoted, keys)}
    merging = table.merge(
        rows,
        same,
        source_alias="s",
        target_alias="t",
        commit_properties=properties,
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
    )
    if replaced:
        merging = merging.when_matched_update(replaced)
    merging.when_not_matched_insert(written).execute()


def check_keys(subject: str, keys: Sequence[str], columns: Iterable[str]) -> None:
    """Raises ``SchemaError`` for keys that are no columns."""
    names = list(columns)
    missing = [name for name in keys if name not in names]
    if missing:
        raise SchemaError(f"{subject}: the keys {', '.join(missing)} are not columns of the rows: {', '.join(names)}.")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
