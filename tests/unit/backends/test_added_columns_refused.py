"""Columns that sinks of tables do not add (``add_columns=True``), and other changes, which they do not make."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyiceberg.types import StringType

from epochal.errors import SchemaError, SinkError
from epochal.testing.sink_contract import SCHEMA, epoch
from tests.kit.delta_tables import DeltaFolder, opened
from tests.kit.evolving_tables import (
    MORE,
    Harness,
    begun,
    columns,
    put,
    table_of,
    version,
)


def _required(harness: Harness) -> None:
    table = harness.table()
    if isinstance(table, DeltaTable):
        table.alter.add_columns([Field("day", PrimitiveType("date"), nullable=False)])
        return
    assert table is not None
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("day", StringType(), required=True)


WITH_STRUCT = pa.schema([("id", pa.int64()), ("name", pa.struct([("first", pa.string())]))])
REFUSED: dict[str, tuple[pa.Schema, str]] = {
    "case": (
        pa.schema([("id", pa.int64()), ("Name", pa.string())]),
        "differs from the table's column 'name' in upper and lower",
    ),
    "type": (pa.schema([("id", pa.string()), ("name", pa.string()), ("amount", pa.float64())]), "id"),
    "wider": (pa.schema([("id", pa.decimal128(20)), ("name", pa.string()), ("amount", pa.float64())]), "id"),
    "nested": (WITH_STRUCT.append(pa.field("amount", pa.float64())), "name"),
    "unknown": (SCHEMA.append(pa.field("amount", pa.duration("us"))), "cannot write these columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_changes_are_refused_and_nothing_is_added(harness: Harness, name: str) -> None:
    schema, message = REFUSED[name]
    begun(harness)
    before, sink = version(harness), harness.make()
    with pytest.raises(SchemaError, match=message):
        sink.check(schema)
    with suppress(SchemaError):
        sink.check_types(schema)
        with pytest.raises(SchemaError, match=message):
            sink.recover(epoch(0, attempt=2))
    assert version(harness) == before


def test_a_required_column_of_the_table_is_refused(harness: Harness) -> None:
    begun(harness)
    _required(harness)
    before = version(harness)
    with pytest.raises(SchemaError, match="day"):
        begun(harness, MORE)
    assert version(harness) == before


def test_fields_of_nested_columns_are_not_added(harness: Harness) -> None:
    begun(harness, WITH_STRUCT)
    wider = pa.schema([("id", pa.int64()), ("name", pa.struct([("first", pa.string()), ("last", pa.string())]))])
    with pytest.raises(SchemaError, match="name"):
        begun(harness, wider)


def test_nested_values_of_an_added_column_may_be_null(harness: Harness) -> None:
    """Also if those of the stream have values: other programs must be able to write null."""
    element = pa.struct([pa.field("code", pa.string(), nullable=False)])
    tags = pa.list_(pa.field("element", element, nullable=False))
    notes = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    schema = SCHEMA.append(pa.field("tags", tags)).append(pa.field("notes", notes))
    begun(harness)
    sink = begun(harness, schema, attempt=2)
    row = {"id": 1, "name": "1", "tags": [{"code": "a"}], "notes": [("n", 1)]}
    put(sink, 1, [row], schema)
    [found] = harness.visible()
    assert (found["tags"], dict(found["notes"])) == ([{"code": "a"}], {"n": 1})
    table = harness.table()
    if isinstance(table, DeltaTable):
        assert "contains_null=False" not in str(table.schema()) and "nullable=False" not in str(table.schema())
        return
    assert table is not None
    required = {field.name for field in table.schema()._lazy_id_to_field.values() if field.required}
    assert required == {"key"}


def test_a_partition_column_is_not_added(tmp_path: Path) -> None:
    for kind, by in (("delta", "name"), ("iceberg", "name")):
        begun(table_of(kind, tmp_path))
        with pytest.raises(SinkError, match="partition_by is code, and the table"):
            begun(table_of(kind, tmp_path, partition_by=["code"]), SCHEMA.append(pa.field("code", pa.string())))
        assert by in columns(table_of(kind, tmp_path))


def test_a_column_with_the_name_of_a_partition_is_refused(tmp_path: Path) -> None:
    begun(table_of("iceberg", tmp_path, partition_by=["bucket(4, id)"]))
    with pytest.raises(SchemaError, match="cannot add the columns id_bucket"):
        begun(table_of("iceberg", tmp_path), SCHEMA.append(pa.field("id_bucket", pa.int64())))


def test_a_key_is_not_added(tmp_path: Path) -> None:
    begun(table_of("delta", tmp_path))
    with pytest.raises(SchemaError, match="cannot add the key 'amount'"):
        begun(table_of("delta", tmp_path, collects=True, keys=["amount"]), MORE)


def test_a_column_that_changes_the_protocol_of_the_table_is_refused(tmp_path: Path) -> None:
    folder = DeltaFolder(tmp_path / "orders", add_columns=True)
    begun(folder)
    before = version(folder)
    for type in (pa.timestamp("us"), pa.list_(pa.timestamp("us")), pa.struct([("at", pa.timestamp("us"))])):
        with pytest.raises(SchemaError, match="cannot add column 'at': it has timestamps without a time zone"):
            begun(folder, SCHEMA.append(pa.field("at", type)))
    assert version(folder) == before
    opened(folder).alter.add_columns([Field("other", PrimitiveType("timestamp_ntz"))])
    begun(folder, SCHEMA.append(pa.field("at", pa.timestamp("us"))))
    assert list(columns(folder)) == ["id", "name", "other", "at"]


def test_a_table_with_a_constraint_gets_no_columns(tmp_path: Path) -> None:
    folder = DeltaFolder(tmp_path / "orders", add_columns=True)
    begun(folder)
    opened(folder).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(SinkError, match="the CHECK constraint positive"):
        begun(folder, MORE)
    assert list(columns(folder)) == ["id", "name"]
