"""Assignment of rows to the shards of a sink, by the key of their row in the table.

Two rows that the database may take for one must be in one shard, whatever their spelling. A shard is therefore computed
from the key columns that the database compares as exactly as Arrow does, after a normalisation of text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection

from epochal.backends.dbms.address import DIALECTS
from epochal.backends.dbms.target import Target, TargetColumn
from epochal.backends.dbms.writing import Writing
from epochal.declarations.names import listed
from epochal.errors import SchemaError
from epochal.state.keygroups import key_groups

_EXACT = frozenset({"boolean", "integer", "decimal", "date", "timestamp", "instant", "uuid"})
"""Families of column types whose values are equal in the database exactly if they are equal in the stream. A UUID is
normalised first. Floating-point numbers are excluded: -0.0 equals 0.0."""


@dataclass(frozen=True)
class Sharding:
    """Assignment of rows to shards. ``columns``: key columns of the table that determine the shard; empty without
    keys, where any shard may insert a row. ``uuids``: those of ``columns`` that are UUIDs."""

    shards: int = 1
    columns: tuple[str, ...] = ()
    uuids: frozenset[str] = frozenset()

    def split(self, rows: pa.Table) -> list[pa.Table]:
        """Return the rows of each shard, in their order. ``rows`` has the table's columns."""
        if self.shards == 1:
            return [rows]
        if not self.columns:
            bounds = [shard * rows.num_rows // self.shards for shard in range(self.shards + 1)]
            return [rows.slice(first, end - first) for first, end in pairwise(bounds)]
        normal = pa.table([self._normal(rows[name], name) for name in self.columns], names=_numbers(self.columns))
        shard_of_row = key_groups(normal, normal.schema, self.shards)
        return [rows.filter(pa.array(shard_of_row == shard)) for shard in range(self.shards)]

    def _normal(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Make texts equal that the database takes for the same value."""
        if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
            column = column.cast(pa.string() if pa.types.is_large_string(column.type) else pa.binary())
        if not pa.types.is_string(column.type):
            return column
        if name in self.uuids:
            return pc.replace_substring_regex(pc.utf8_lower(column), "[-{}]", "")
        return pc.utf8_rtrim(column, " ")  # CHAR, and most collations of MySQL, ignore blanks at the end


def sharding_of(connection: Connection, target: Target, writing: Writing, schema: pa.Schema | None) -> Sharding:
    """Return how rows are assigned to the sink's shards. ``schema``: the stream's, if known. Raises ``SchemaError`` for
    a table that several transactions cannot write independently."""
    if writing.shards == 1 or not writing.keys:
        return Sharding(writing.shards)
    inexact = _inexact_texts(connection, writing)
    keys = [column for column in target.columns if column.name in writing.table_keys]
    exact = [column for column in keys if _is_exact(column, inexact)]
    if not exact:
        shown = listed([f"{column.name} {column.type.shown}" for column in keys])
        raise SchemaError(
            f"Table {writing.table} cannot be written in {writing.shards} shards: the database may take different "
            f"values of its keys ({shown}) for the same row. Give text a collation that compares it exactly "
            "(utf8mb4_bin in MySQL and MariaDB, a deterministic one in PostgreSQL), or set shards=1."
        )
    columns = tuple(column.name for column in exact)
    if schema is not None:
        _check_unique(target, writing, frozenset(writing.written(schema).values()), frozenset(columns))
    return Sharding(writing.shards, columns, frozenset(column.name for column in exact if column.type.family == "uuid"))


def _is_exact(column: TargetColumn, inexact: Collection[str]) -> bool:
    type = column.type
    if type.family == "text":
        return bool(type.labels) or column.name not in inexact
    if type.family == "binary":
        return not type.shown.startswith("binary")  # padded with zeros
    return type.family in _EXACT


def _inexact_texts(connection: Connection, writing: Writing) -> set[str]:
    """Return the columns of the table with a collation that takes different texts for the same, such as one that
    ignores case."""
    dialect = DIALECTS[connection.dialect.name]
    if dialect == "postgresql":
        table = connection.dialect.identifier_preparer.format_table(
            sa.table(writing.table_name, schema=writing.schema_name)
        )
        query = sa.text(
            "SELECT a.attname FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation "
            "WHERE a.attrelid = to_regclass(:table) AND NOT c.collisdeterministic"
        ).bindparams(table=table)
    elif dialect == "mysql":
        query = sa.text(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = COALESCE(:schema, DATABASE()) "
            "AND table_name = :table AND RIGHT(collation_name, 4) <> '_bin'"
        ).bindparams(schema=writing.schema_name, table=writing.table_name)
    else:
        return set()
    return {str(name) for name in connection.execute(query).scalars()}


def _check_unique(target: Target, writing: Writing, written: frozenset[str], columns: frozenset[str]) -> None:
    """Refuse a unique constraint that rows of different shards can violate, depending on which is committed first."""
    for unique in target.unique:
        if unique & written and not unique >= columns:
            raise SchemaError(
                f"Table {writing.table} cannot be written in {writing.shards} shards: it is also unique by "
                f"{listed(sorted(unique))}, and shards are committed in any order, so that a row could be refused "
                "because of one that the same epoch removes or changes. Drop that constraint, or set shards=1."
            )


def _numbers(columns: tuple[str, ...]) -> list[str]:
    """Return numbers as column names: Arrow would take a name with a leading dot for a path."""
    return [str(number) for number in range(len(columns))]
