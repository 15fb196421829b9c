"""State schemas read without a JVM."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DecimalType, StructType

from epochal.errors import SchemaError
from epochal.pipeline.ddl import parse_columns


def types(text: str) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in parse_columns("State 's'", text)]


def test_types_are_spelt_as_spark_spells_them() -> None:
    given = "a INT, b: long, c decimal( 10 , 2 ), d dec, `e f` String NOT NULL, g timestamp_ltz COMMENT 'x, y', h byte"
    assert types(given) == [
        ("a", "int"),
        ("b", "bigint"),
        ("c", "decimal(10,2)"),
        ("d", "decimal(10,0)"),
        ("e f", "string"),
        ("g", "timestamp"),
        ("h", "tinyint"),
    ]


def test_a_struct_type_does_as_well() -> None:
    schema = StructType().add("n", "long").add("price", DecimalType(12, 3))
    assert [(c.name, c.type) for c in parse_columns("State 's'", schema)] == [
        ("n", "bigint"),
        ("price", "decimal(12,3)"),
    ]


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ("", "has no columns"),
        ("streak", "'streak' is not a column"),
        ("a int, A string", "two columns named 'A'"),
        ("_kg int", "are Epochal's"),
        ("a array<int>", "keep the elements in a ListState"),
        ("a map<string,int>", "keep the entries in a MapState"),
        ("a struct<x:int,y:int>", "give each field a column"),
        ("a decimal(40,2)", "precision"),
        ("a varchar(3)", "use string"),
        ("a integr", "State cannot hold integr"),
    ],
)
def test_refusals_name_the_state_and_the_fix(schema: str, part: str) -> None:
    with pytest.raises(SchemaError) as caught:
        types(schema)
    assert "State 's'" in caught.value.message
    assert part in caught.value.message
