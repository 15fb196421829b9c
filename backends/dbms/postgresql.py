"""Writing of rows to PostgreSQL by COPY: directly into the table, or into a temporary one that an upsert reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from psycopg import Connection, sql

from epochal.backends import json_lines
from epochal.backends.dbms.writing import DELETE, INSERT, OPERATION, UPSERT, Writing

Item = TypeVar("Item")
_STAGED = sql.Identifier("_epochal_rows")
_OPTIONS = pyarrow.csv.WriteOptions(include_header=False)


def insert(connection: Connection[Any], writing: Writing, chunks: Iterable[pa.Table]) -> None:
    """Append the chunks by one COPY, in the open transaction. Raises psycopg's exceptions."""
    encoded = _ahead((chunk.column_names, csv_of(chunk)) for chunk in chunks)
    first = next(encoded, None)
    if first is None:
        return
    names, data = first
    with connection.cursor() as cursor, cursor.copy(_copy(table_name(writing), names)) as copy:
        copy.write(data)
        for _, data in encoded:
            copy.write(data)


def merge(connection: Connection[Any], writing: Writing, chunks: Iterable[pa.Table]) -> None:
    """Merge chunks that have one row per key, in the open transaction. Raises psycopg's exceptions."""
    with connection.cursor() as cursor:
        staged = False
        for chunk, data in _ahead((chunk, csv_of(chunk)) for chunk in chunks):
            if staged:
                cursor.execute(sql.SQL("TRUNCATE {}").format(_STAGED))
            else:
                cursor.execute(_staging(writing, chunk.column_names))
                staged = True
            with cursor.copy(_copy(_STAGED, chunk.column_names)) as copy:
                copy.write(data)
            for statement in _merging(writing, chunk):
                cursor.execute(statement)


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items; a thread prepares each while the server processes the previous one."""
    with ThreadPoolExecutor(max_workers=1) as worker:
        following = worker.submit(next, items, None)
        while (item := following.result()) is not None:
            following = worker.submit(next, items, None)
            yield item


def table_name(writing: Writing) -> sql.Identifier:
    return sql.Identifier(*filter(None, (writing.schema_name, writing.table_name)))


def csv_of(rows: pa.Table) -> bytes:
    """Return rows in the format of COPY .. FORMAT csv: a null is empty, text is in quotation marks."""
    for position, field in enumerate(rows.schema):
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            rows = rows.set_column(position, field.name, _as_text(rows.column(position)))
    buffer = BytesIO()
    pyarrow.csv.write_csv(rows, buffer, _OPTIONS)
    return buffer.getvalue()


def conflict(writing: Writing, rows: pa.Table) -> sql.Composed:
    """Return ``ON CONFLICT (keys) DO UPDATE SET ..`` for the columns that are not keys; newer stored rows are kept."""
    others = [name for name in rows.column_names if name not in (OPERATION, *writing.table_keys)]
    keys = sql.SQL(", ").join(map(sql.Identifier, writing.table_keys))
    if not others:
        return sql.SQL("ON CONFLICT ({}) DO NOTHING").format(keys)
    sets = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others)
    update = sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(keys, sets)
    if writing.guard is None:
        return update
    stored, new = sql.Identifier(writing.table_name, writing.guard), sql.Identifier("excluded", writing.guard)
    return sql.SQL("{} WHERE {}").format(update, _not_newer(rows.schema.field(writing.guard).type, stored, new))


def _not_newer(type: pa.DataType, stored: sql.Composable, new: sql.Composable) -> sql.Composed:
    """Return a condition: the stored row is not newer than the new one. Order as in Arrow: nulls first, text by its
    bytes."""
    collation = sql.SQL(' COLLATE "C"' if pa.types.is_string(type) or pa.types.is_large_string(type) else "")
    return sql.SQL("({0} IS NULL OR {1} >= {0}{2})").format(stored, new, collation)


def _copy(table: sql.Identifier, names: Iterable[str]) -> sql.Composed:
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, _listed(names))


def _staging(writing: Writing, names: Iterable[str]) -> sql.Composed:
    """Create the staging table with the target's columns, without constraints: the target checks them."""
    columns = [
        sql.SQL("{}::smallint AS {}").format(sql.Literal(0), sql.Identifier(name)) if name == OPERATION
        else sql.Identifier(name)
        for name in names
    ]  # fmt: skip
    return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
        _STAGED, sql.SQL(", ").join(columns), table_name(writing)
    )


def _merging(writing: Writing, chunk: pa.Table) -> Iterable[sql.Composed]:
    names = [name for name in chunk.column_names if name != OPERATION]
    into = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
        table_name(writing), _listed(names), _listed(names), _STAGED
    )
    if OPERATION not in chunk.column_names:
        yield sql.SQL("{} {}").format(into, conflict(writing, chunk))
        return
    there = set(chunk[OPERATION].unique().to_pylist())
    same = sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(key)) for key in writing.table_keys)
    which = sql.SQL("{} WHERE {} = {}")
    operation = sql.Identifier(OPERATION)
    if DELETE in there:
        if writing.guard is not None:
            order = [sql.Identifier(alias, writing.guard) for alias in ("t", "s")]
            same = sql.SQL("{} AND {}").format(same, _not_newer(chunk.schema.field(writing.guard).type, *order))
        yield sql.SQL("DELETE FROM {} t USING {} s WHERE {} AND s.{} = {}").format(
            table_name(writing), _STAGED, same, operation, sql.Literal(DELETE)
        )
    if INSERT in there:
        yield which.format(into, operation, sql.Literal(INSERT))
    if UPSERT in there:
        yield sql.SQL("{} {}").format(which.format(into, operation, sql.Literal(UPSERT)), conflict(writing, chunk))


def _listed(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    """Convert binary to PostgreSQL's hexadecimal form, and nested values to JSON."""
    if pa.types.is_binary(column.type):
        texts = [None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()]
    else:
        return json_lines.texts(column)
    return pa.array(texts, pa.string())


def statements(writing: Writing, rows: pa.Table) -> Iterable[tuple[sql.Composed, list[tuple[Any, ...]]]]:
    """Return statements with one set of values per row, for transactions in which temporary tables are not allowed."""
    names = [name for name in rows.column_names if name != OPERATION]
    into = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        table_name(writing), _listed(names), sql.SQL(", ").join([sql.Placeholder()] * len(names))
    )
    upsert = sql.SQL("{} {}").format(into, conflict(writing, rows))
    if OPERATION not in rows.column_names:
        yield upsert, _values(rows, names)
        return
    keys = sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(key), sql.Placeholder()) for key in writing.table_keys
    )
    delete = sql.SQL("DELETE FROM {} WHERE {}").format(table_name(writing), keys)
    deciding = list(writing.table_keys)
    if writing.guard is not None:
        stored = sql.Identifier(writing.guard)
        type = rows.schema.field(writing.guard).type
        delete = sql.SQL("{} AND {}").format(delete, _not_newer(type, stored, sql.Placeholder()))
        deciding.append(writing.guard)
    for operation, statement, columns in (
        (DELETE, delete, deciding),
        (INSERT, into, names),
        (UPSERT, upsert, names),
    ):
        chosen = rows.filter(pc.equal(rows[OPERATION], operation))
        if chosen.num_rows:
            yield statement, _values(chosen, columns)


def _values(rows: pa.Table, names: list[str]) -> list[tuple[Any, ...]]:
    columns = [rows[name] for name in names]
    texts = [_as_text(column) if pa.types.is_nested(column.type) else column for column in columns]
    return list(zip(*(column.to_pylist() for column in texts), strict=True))
