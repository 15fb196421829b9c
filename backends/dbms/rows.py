"""Preparation of rows for the table: its column names, and only the last operation of each key. All in Arrow."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from epochal.backends import text_columns
from epochal.backends.dbms.writing import DELETE, INSERT, OPERATION, ORDER, UPSERT, Writing
from epochal.errors import RowRejected, SinkError

OPERATIONS = pa.array(["upsert", "insert", "delete"])
_POSITION = "_epochal_position"


def renamed(batch: pa.RecordBatch, writing: Writing) -> pa.Table:
    """Return the written columns under the table's names, with the operation and order columns if configured."""
    names = writing.written(batch.schema)
    columns = {target: batch.column(name) for name, target in names.items()}
    if writing.operation is not None:
        columns[OPERATION] = _operations(batch, writing)
    if writing.order_by is not None:
        columns[ORDER] = batch.column(writing.order_by)
        _check_order(batch, writing)
    return pa.table(columns)


def last_per_key(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Return the net effect of the rows applied in order: one row per key, in the order of the last ones.

    With an operation column: an insert of a key that an earlier row has written is refused, as the database would; an
    insert after a delete becomes an upsert. Raises ``SinkError``.
    """
    if ORDER in rows.column_names:
        rows = _in_order(rows)
    rows = rows.append_column(_POSITION, pa.array(range(rows.num_rows), pa.int64()))
    numbered = _numbered(rows, keys).append_column(_POSITION, rows[_POSITION])
    last = numbered.group_by(numbered.column_names[:-1]).aggregate([(_POSITION, "max")])[f"{_POSITION}_max"]
    if len(last) == rows.num_rows:
        return rows.drop_columns([_POSITION])
    if OPERATION in rows.column_names:
        rows = _with_net_operations(rows, keys)
    return rows.take(pc.take(last, pc.sort_indices(last))).drop_columns([_POSITION])


def net(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """:func:`last_per_key`, in the order of the keys: an index is walked once, and all writers lock rows in one
    order."""
    ordered = _by_key(rows, keys)
    return ordered if _are_distinct(ordered, keys) else _by_key(last_per_key(rows, keys), keys)


def described(row: dict[str, Any]) -> str:
    """Format one row for a message."""
    return text_columns.described(row, (OPERATION, ORDER, _POSITION))


def _by_key(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    numbered = _numbered(rows, keys)
    return rows.take(pc.sort_indices(numbered, [(name, "ascending") for name in numbered.column_names]))


def _numbered(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Return the key columns under numbers as names: Arrow would take a name with a leading dot for a path."""
    return pa.table([rows[key] for key in keys], names=[str(number) for number in range(len(keys))])


def _are_distinct(ordered: pa.Table, keys: tuple[str, ...]) -> bool:
    """Return whether no two neighbours have the same keys; ``False`` for floating-point keys."""
    if any(pa.types.is_floating(ordered[key].type) for key in keys):
        return False
    alike = [pc.equal(ordered[key].slice(1), ordered[key].slice(0, max(0, ordered.num_rows - 1))) for key in keys]
    both = alike[0]
    for column in alike[1:]:
        both = pc.and_(both, column)
    return not pc.any(both, min_count=0).as_py()


def _operations(batch: pa.RecordBatch, writing: Writing) -> pa.Array:
    operations = batch.column(writing.operation)
    found = pc.index_in(pc.utf8_lower(operations), OPERATIONS)
    if found.null_count:
        row = batch.filter(pc.is_null(found)).slice(0, 1).to_pylist()[0]
        raise RowRejected(
            f"Operation {row[writing.operation]!r} of row {described(row)} is unknown; column {writing.operation!r} "
            "must contain insert, upsert or delete."
        )
    return found.cast(pa.int8())


def _check_order(batch: pa.RecordBatch, writing: Writing) -> None:
    """Refuse NaN: databases disagree with each other, and with Arrow, on its place among the numbers."""
    order = batch.column(writing.order_by)
    if pa.types.is_floating(order.type) and pc.any(pc.is_nan(order)).as_py():
        row = batch.filter(pc.is_nan(order)).slice(0, 1).to_pylist()[0]
        raise RowRejected(
            f"Row {described(row)} cannot be ordered: column {writing.order_by!r}, which order_by names, is "
            "NaN. Replace NaN by null, which sorts before every number, or filter the row."
        )


def _in_order(rows: pa.Table) -> pa.Table:
    """Sort by the order column, nulls first; rows with equal values keep their order."""
    numbered = rows.append_column(_POSITION, pa.array(range(rows.num_rows), pa.int64()))
    by: list[Any] = [(ORDER, "ascending", "at_start"), (_POSITION, "ascending", "at_start")]
    try:
        order = pc.sort_indices(numbered, sort_keys=by)
    except (ValueError, TypeError):  # an Arrow version with one null placement for all keys
        order = pc.sort_indices(numbered, sort_keys=[key[:2] for key in by], null_placement="at_start")
    return rows.take(order)


def _with_net_operations(rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    frame = rows.select([*keys, OPERATION]).to_pandas()
    grouped = frame.groupby(list(keys), sort=False)[OPERATION]
    before = grouped.shift()
    doubled = (frame[OPERATION] == INSERT) & before.isin([UPSERT, INSERT])
    if doubled.any():
        position = int(doubled.to_numpy().argmax())
        row = described(rows.select(list(keys)).slice(position, 1).to_pylist()[0])
        raise SinkError(
            f"Row {row} is inserted, but an earlier operation of the same epoch has already inserted it. Use upsert, "
            "or remove one of the two."
        )
    first = grouped.transform("first")
    net = frame[OPERATION].where(
        frame[OPERATION] == DELETE, pd.Series(UPSERT, frame.index).where(first != INSERT, INSERT)
    )
    return rows.set_column(rows.column_names.index(OPERATION), OPERATION, pa.array(net.astype("int8")))
