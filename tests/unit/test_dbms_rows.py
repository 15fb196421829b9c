"""Rows for a database table: mapping, checks and the net operation of each key."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.backends.dbms import rows as row_rules
from epochal.backends.dbms import values
from epochal.backends.dbms.column_types import ColumnType
from epochal.backends.dbms.target import Target, TargetColumn
from epochal.backends.dbms.writing import OPERATION, ORDER, Writing
from epochal.errors import SchemaError, SinkError

SCHEMA = pa.schema([("does", pa.string()), ("id", pa.int64()), ("name", pa.string())])
OPERATIONS = ("upsert", "insert", "delete")


def rows(writing: Writing, *items: tuple[str, int | None, str | None]) -> pa.Table:
    dicts = [dict(zip(SCHEMA.names, row, strict=True)) for row in items]
    return row_rules.renamed(pa.RecordBatch.from_pylist(dicts, schema=SCHEMA), writing)


class Sequential:
    """A table to which operations are applied one by one."""

    def __init__(self, before: set[int]) -> None:
        self.rows: dict[int, str] = dict.fromkeys(before, "before")

    def apply(self, changes: Iterator[dict[str, Any]]) -> bool:
        """Returns ``False`` if a row is refused."""
        for change in changes:
            key = change["id"]
            if change[OPERATION] == row_rules.DELETE:
                self.rows.pop(key, None)
            elif change[OPERATION] == row_rules.INSERT and key in self.rows:
                return False
            else:
                self.rows[key] = change["name"]
        return True


@given(
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3)), max_size=14),
    st.sets(st.integers(0, 3)),
)
def test_net_operations_equal_the_sequence_of_operations(operations: list[tuple[str, int]], before: set[int]) -> None:
    """One operation per key leaves the same rows as the sequence of operations, or is refused like the sequence.

    Exception: inserting an existing key and then deleting it is accepted, because it has no lasting effect.
    """
    writing = Writing("t", keys=("id",), operation="does")
    table = rows(writing, *((word, key, f"{number}") for number, (word, key) in enumerate(operations)))
    by_sequence, by_net = Sequential(before), Sequential(before)
    allowed = by_sequence.apply(iter(table.to_pylist()))
    try:
        net = row_rules.net(table, ("id",))
    except SinkError:
        assert not allowed
        return
    assert len(set(net["id"].to_pylist())) == net.num_rows
    if by_net.apply(iter(net.to_pylist())) == allowed and allowed:
        assert by_net.rows == by_sequence.rows
    elif not allowed:
        refused = {key for word, key in operations if word == "insert"} & before
        assert refused


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 5)), min_size=1, max_size=20))
def test_order_column_then_write_order_selects_the_row(given_rows: list[tuple[int, int | None]]) -> None:
    table = pa.table(
        {
            "id": pa.array([key for key, _ in given_rows], pa.int64()),
            "n": pa.array(range(len(given_rows)), pa.int64()),
            ORDER: pa.array([order for _, order in given_rows], pa.int64()),
        }
    )
    last: dict[int, tuple[int, int]] = {}
    for number, (key, order) in enumerate(given_rows):
        rank = (-1 if order is None else order, number)
        last[key] = max(last.get(key, rank), rank)
    net = row_rules.net(table, ("id",)).to_pylist()
    assert {row["id"]: row["n"] for row in net} == {key: number for key, (_, number) in last.items()}


def test_rows_are_sorted_by_key() -> None:
    keys = list(range(1000))
    random.Random(1).shuffle(keys)
    table = pa.table({"id": keys})
    assert row_rules.net(table, ("id",)).column("id").to_pylist() == sorted(keys)


TARGET = Target(
    "t",
    (
        TargetColumn("id", ColumnType("integer", "bigint", 64), nullable=False, required=True, computed=False),
        TargetColumn("name", ColumnType("text", "varchar(3)", 3), nullable=False, required=True, computed=False),
    ),
    (frozenset({"id"}),),
)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("upsert", None, "a"), "Row .*name='a' does not fit the table: 'id' takes no null"),
        (("upsert", 4, None), "Row id=4 does not fit the table: 'name' takes no null"),
        (("upsert", 5, "é漢字x"), r"Row id=5 .* 'name' is varchar\(3\), and the value is longer"),
        (("upsert", 6, "a\0"), "Row id=6 .* 'name' holds a zero character, which PostgreSQL cannot store"),
        (("delete", None, None), "'id' takes no null"),
    ],
)
def test_rows_that_violate_the_table_schema_are_named(row: Any, message: str) -> None:
    table = rows(Writing("t", keys=("id",), operation="does"), ("upsert", 1, "é漢字"), row)
    with pytest.raises(SinkError, match=message):
        values.check(table, TARGET, ("id",), "postgresql")


def test_deletes_check_only_their_key() -> None:
    table = rows(Writing("t", keys=("id",), operation="does"), ("delete", 1, None), ("DELETE", 2, "longer than three"))
    values.check(table, TARGET, ("id",), "postgresql")


def test_an_unknown_operation_is_named_with_its_row() -> None:
    with pytest.raises(SinkError, match=r"Operation 'remove' of row .*id=3.* must contain insert, upsert or delete"):
        rows(Writing("t", keys=("id",), operation="does"), ("upsert", 1, "a"), ("remove", 3, "b"))


class TestMapping:
    def test_columns_map_stream_names_to_table_names(self) -> None:
        writing = Writing("t", keys=("id",), operation="does", columns=(("id", "key"), ("name", None)))
        assert rows(writing, ("upsert", 1, "a")).column_names == ["key", OPERATION]
        assert writing.table_keys == ("key",)

    def test_a_mapped_operation_column_is_written(self) -> None:
        writing = Writing("t", keys=("id",), operation="does", columns=(("does", "last_change"),))
        assert rows(writing, ("upsert", 1, "a")).column_names == ["last_change", "id", "name", OPERATION]

    @pytest.mark.parametrize(
        ("writing", "message"),
        [
            (Writing("t", keys=("idd",)), "keys names column 'idd'.*Did you mean 'id'"),
            (Writing("t", columns=(("nam", "x"),)), "columns names column 'nam'.*Did you mean 'name'"),
            (Writing("t", keys=("id",), operation="doe"), "operation names column 'doe'"),
            (Writing("t", keys=("id",), order_by="at"), "order_by names column 'at'"),
            (Writing("t", keys=("id",), columns=(("id", None),)), "Key column 'id' is mapped to None"),
            (Writing("t", keys=("id",), operation="id"), "operation column 'id' must be a string"),
            (Writing("t", columns=(("does", "name"),)), "Two columns of the stream are written to column 'name'"),
            (
                Writing("t", columns=(("does", None), ("id", None), ("name", None))),
                "No column of the stream is written",
            ),
        ],
    )
    def test_invalid_mappings_are_refused(self, writing: Writing, message: str) -> None:
        with pytest.raises(SchemaError, match=message):
            writing.written(SCHEMA)
