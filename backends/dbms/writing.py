"""Mapping of a stream to a table, as the author configured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from epochal.declarations.names import closest, listed
from epochal.errors import SchemaError

OPERATION, ORDER = "_epochal_operation", "_epochal_order"
"""Columns of the log that do not belong to the table."""
UPSERT, INSERT, DELETE = 0, 1, 2
"""Values of the log's operation column."""


@dataclass(frozen=True)
class Writing:
    """``table``: its name, with its schema before a dot. Column names are the stream's.

    ``keys``: columns that identify a row of the table; without keys rows are only inserted. ``operation``: column with
    ``insert``, ``upsert`` or ``delete`` for each row. ``order_by``: column that determines the last of an epoch's rows
    of one key; by default, the order of writing. ``keep_newer``: a row of the table with a greater order is neither
    replaced nor deleted. ``columns``: the table's name of a column, ``None``: not written. ``create``: create a missing
    table. ``shards``: number of transactions per epoch, each of which writes the rows of its own keys.
    """

    table: str
    keys: tuple[str, ...] = ()
    operation: str | None = None
    order_by: str | None = None
    columns: tuple[tuple[str, str | None], ...] = ()
    create: bool = False
    keep_newer: bool = True
    shards: int = 1

    @property
    def guard(self) -> str | None:
        """The table's column that protects newer rows; ``None`` if no row is protected."""
        if self.order_by is None or not self.keep_newer:
            return None
        return dict(self.columns).get(self.order_by) or self.order_by

    @property
    def schema_name(self) -> str | None:
        return self.table.rpartition(".")[0] or None

    @property
    def table_name(self) -> str:
        return self.table.rpartition(".")[2]

    @property
    def table_keys(self) -> tuple[str, ...]:
        """The key columns under the table's names."""
        renamed = dict(self.columns)
        return tuple(renamed.get(key) or key for key in self.keys)

    def written(self, schema: pa.Schema) -> Mapping[str, str]:
        """Stream column -> table column, for every column that is written. Raises ``SchemaError``."""
        self._check_named(schema)
        renamed = dict(self.columns)
        found: dict[str, str] = {}
        for name in schema.names:
            target = renamed.get(name, None if name == self.operation and name not in renamed else name)
            if target is not None:
                found[name] = target
        doubled = sorted({name for name in found.values() if list(found.values()).count(name) > 1})
        if doubled:
            raise SchemaError(f"Two columns of the stream are written to column {doubled[0]!r}. Map one to None.")
        if not found:
            raise SchemaError("No column of the stream is written. Map fewer columns to None.")
        if self.guard is not None and self.order_by not in found:
            raise SchemaError(
                f"The order_by column {self.order_by!r} is not written to table {self.table}, so that an older row of "
                "a later epoch could replace a newer one. Write the column, or set keep_newer=False: order_by then "
                "orders the rows of one epoch only."
            )
        return found

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the written columns under their names in the table."""
        return [schema.field(name).with_name(target) for name, target in self.written(schema).items()]

    def _check_named(self, schema: pa.Schema) -> None:
        renamed = dict(self.columns)
        uses = [("keys", key) for key in self.keys] + [("columns", name) for name in renamed]
        uses += [("operation", self.operation)] if self.operation else []
        uses += [("order_by", self.order_by)] if self.order_by else []
        for where, name in uses:
            if name not in schema.names:
                raise SchemaError(
                    f"{where} names column {name!r}, which the stream does not have.{closest(name, schema.names)} "
                    f"Its columns are {listed(schema.names)}."
                )
        for key in self.keys:
            if key in renamed and renamed[key] is None:
                raise SchemaError(f"Key column {key!r} is mapped to None; a key has to be written.")
        if self.operation and not pa.types.is_string(schema.field(self.operation).type):
            raise SchemaError(f"The operation column {self.operation!r} must be a string: insert, upsert or delete.")
