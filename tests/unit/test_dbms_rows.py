"""Rows on their way to a table: mapped, checked, and what several of one key come to."""

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
WORDS = ("upsert", "insert", "delete")


def rows(writing: Writing, *given: tuple[str, int | None, str | None]) -> pa.Table:
    dicts = [dict(zip(SCHEMA.names, row, strict=True)) for row in given]
    return row_rules.renamed(pa.RecordBatch.from_pylist(dicts, schema=SCHEMA), writing)


class Sequential:
    """The table, with operations done to it one after the other."""

    def __init__(self, before: set[int]) -> None:
        self.rows: dict[int, str] = dict.fromkeys(before, "before")

    def apply(self, changes: Iterator[dict[str, Any]]) -> bool:
        """``False``: a row was refused."""
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
    st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 3)), max_size=14),
    st.sets(st.integers(0, 3)),
)
def test_the_net_operations_do_what_all_of_them_do(operations: list[tuple[str, int]], before: set[int]) -> None:
    """Law: one operation for each key leaves what the operations one after the other leave, or is refused as they are.

    But for a key that is inserted and then deleted while it is there: that is let pass, as nothing would come of it.
    """
    writing = Writing("t", keys=("id",), operation="does")
    table = rows(writing, *((word, key, f"{number}") for number, (word, key) in enumerate(operations)))
    one_by_one, at_once = Sequential(before), Sequential(before)
    allowed = one_by_one.apply(iter(table.to_pylist()))
    try:
        net = row_rules.net(table, ("id",))
    except SinkError:
        assert not allowed
        return
    assert len(set(net["id"].to_pylist())) == net.num_rows
    if at_once.apply(iter(net.to_pylist())) == allowed and allowed:
        assert at_once.rows == one_by_one.rows
    elif not allowed:
        refused = {key for word, key in operations if word == "insert"} & before
        assert refused


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 5)), min_size=1, max_size=20))
def test_the_order_column_decides_then_the_order_of_writing(given_rows: list[tuple[int, int | None]]) -> None:
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


def test_rows_come_in_the_order_of_their_keys() -> None:
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
def test_what_the_table_would_refuse_is_named_before_the_decision(row: Any, message: str) -> None:
    table = rows(Writing("t", keys=("id",), operation="does"), ("upsert", 1, "é漢字"), row)
    with pytest.raises(SinkError, match=message):
        values.check(table, TARGET, ("id",), "postgresql")


def test_a_delete_needs_its_key_alone() -> None:
    table = rows(Writing("t", keys=("id",), operation="does"), ("delete", 1, None), ("DELETE", 2, "longer than three"))
    values.check(table, TARGET, ("id",), "postgresql")


def test_an_unknown_operation_is_named_with_its_row() -> None:
    with pytest.raises(SinkError, match=r"Operation 'remove' of row .*id=3.* must contain insert, upsert or delete"):
        rows(Writing("t", keys=("id",), operation="does"), ("upsert", 1, "a"), ("remove", 3, "b"))


class TestMapping:
    def test_names_are_the_streams_on_the_left_and_the_tables_on_the_right(self) -> None:
        writing = Writing("t", keys=("id",), operation="does", columns=(("id", "key"), ("name", None)))
        assert rows(writing, ("upsert", 1, "a")).column_names == ["key", OPERATION]
        assert writing.table_keys == ("key",)

    def test_the_operation_is_written_when_it_is_mapped(self) -> None:
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
    def test_what_cannot_be(self, writing: Writing, message: str) -> None:
        with pytest.raises(SchemaError, match=message):
            writing.written(SCHEMA)
