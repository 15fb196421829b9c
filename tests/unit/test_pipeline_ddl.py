"""State schemas read without a JVM."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DecimalType, StructType

from epochal.declarations.ddl import parse_columns
from epochal.errors import SchemaError


def types(text: str) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in parse_columns("State 's'", text)]


def test_types_are_normalised_to_sparks_names() -> None:
    text = "a INT, b: long, c decimal( 10 , 2 ), d dec, `e f` String NOT NULL, g timestamp_ltz COMMENT 'x, y', h byte"
    assert types(text) == [
        ("a", "int"),
        ("b", "bigint"),
        ("c", "decimal(10,2)"),
        ("d", "decimal(10,0)"),
        ("e f", "string"),
        ("g", "timestamp"),
        ("h", "tinyint"),
    ]


def test_a_struct_type_is_accepted_as_a_schema() -> None:
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
        ("_kg int", "are reserved"),
        ("a array<>", "'array<>' is not a type: write array<element>"),
        ("a map<string>", "write array<element>, map<key, value>"),
        ("a struct<x:int,X:int>", "two fields named 'x'"),
        ("a interval year to month", "keep the number of months as int"),
        ("a array<int> DEFAULT '[1.5]'", "an array, each element an integer"),
        ("a decimal(40,2)", "precision"),
        ("a varchar(3)", "use string"),
        ("a integr", "State cannot hold integr"),
    ],
)
def test_error_messages_name_the_state_and_the_fix(schema: str, part: str) -> None:
    with pytest.raises(SchemaError) as caught:
        types(schema)
    assert "State 's'" in caught.value.message
    assert part in caught.value.message


def test_nested_types_are_normalised_to_sparks_names() -> None:
    columns = parse_columns(
        "S",
        "a array<LONG>, `b.``x` MAP<string, Struct<x: int NOT NULL COMMENT 'a, b', `y z` array< date >>>, "
        "c interval DAY  to second not null, d struct<a int, b:string> DEFAULT '{\"a\": 1}', e variant",
    )
    assert [(column.name, column.type, column.default) for column in columns] == [
        ("a", "array<bigint>", None),
        ("b.`x", "map<string,struct<x:int,`y z`:array<date>>>", None),
        ("c", "interval day to second", None),
        ("d", "struct<a:int,b:string>", {"a": 1, "b": None}),
        ("e", "variant", None),
    ]
