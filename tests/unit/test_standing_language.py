"""The language of standing queries: binding of texts to the columns of a stream, by Spark's rules."""

from __future__ import annotations

import json

import pytest

from epochal.standing_queries.binding import bound
from epochal.standing_queries.expression import Expression
from epochal.standing_queries.query import Aggregate, Query
from epochal.standing_queries.refusals import EXAMPLE_COLUMNS

WINDOW = "WINDOW '5 minutes'"


def query(text: str) -> Query:
    return bound(text, EXAMPLE_COLUMNS)


def where(condition: str) -> list[str]:
    return [each.key for each in query(f"SELECT count(*) AS n WHERE {condition} {WINDOW}").where]


def aggregates(selected: str) -> tuple[Aggregate, ...]:
    return query(f"SELECT {selected} {WINDOW}").aggregates


def test_a_query_has_groups_aggregates_conditions_and_windows() -> None:
    found = query(
        "SELECT device, count(*) AS n, avg(amount) AS mean WHERE country = 'SE' GROUP BY device "
        "WINDOW '1 hour' SLIDE '5 minutes'"
    )
    column = Expression("column", "string", value="device")
    assert [(group.name, group.expression) for group in found.groups] == [("device", column)]
    assert [(one.name, one.function, one.type) for one in found.aggregates] == [
        ("n", "count", "bigint"),
        ("mean", "avg", "double"),
    ]
    assert [condition.operation for condition in found.where] == ["eq"]
    assert (found.size, found.slide, found.windows_of_a_row) == (3_600_000_000, 300_000_000, 12)
    assert found.columns == {"device", "amount", "country"}


def test_a_query_is_serialised_as_json() -> None:
    found = query(
        "SELECT device, date(at) AS day, sum(price) AS total, count_if(items > 2) AS many, max(at) AS last "
        f"WHERE user IN (3, 1, 2) AND at >= '2024-01-01T10:00:00+02:00' GROUP BY device, day {WINDOW}"
    )
    assert Query.of(json.loads(json.dumps(found.json))) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("country = 'SE'", "'SE' = Country"),
        ("items > 2", "2 < `items`"),
        ("items BETWEEN 1 AND 3", "items <= 3 AND items >= 1"),
        ("user IN (3, 1, 2, 1)", "user IN (1, 2, 3)"),
        ("at > '2024-01-01'", "at > TIMESTAMP '2024-01-01 00:00:00'"),
        ("items > 2 AND country = 'SE' AND items > 2", "country = 'SE' AND items > 2"),
        ("items <> 2", "NOT items = 2"),
        ("country NOT LIKE 'S%'", "NOT country LIKE 'S%'"),
        ("items > 10L", "CAST(items AS BIGINT) > 10L"),
        ("CASE country WHEN 'SE' THEN true END", "CASE WHEN country = 'SE' THEN true ELSE NULL END"),
        ('country = "SE"', "country = 'SE'"),
    ],
)
def test_equivalent_expressions_have_equal_keys(one: str, other: str) -> None:
    assert sorted(where(one)) == sorted(where(other))


@pytest.mark.parametrize(
    ("condition", "compared_as"),
    [
        ("items > 1.5", "decimal(11,1)"),
        ("user > 1.5", "decimal(21,1)"),
        ("price > 1", "decimal(12,2)"),
        ("amount > 1.5", "double"),
        ("items > 1e0", "double"),
        ("items = user", "bigint"),
        ("date(at) > '2024-01-01'", "date"),
        ("date(at) = at", "timestamp"),
    ],
)
def test_two_types_are_compared_in_the_common_type_of_spark(condition: str, compared_as: str) -> None:
    (key,) = where(condition)
    assert {argument.type for argument in Expression.of(json.loads(key)).arguments} == {compared_as}


@pytest.mark.parametrize(
    ("selected", "type"),
    [
        ("sum(items) AS x", "bigint"),
        ("sum(amount) AS x", "double"),
        ("sum(price) AS x", "decimal(20,2)"),
        ("avg(price) AS x", "decimal(14,6)"),
        ("avg(items) AS x", "double"),
        ("min(price) AS x", "decimal(10,2)"),
        ("max(at) AS x", "timestamp"),
        ("count(device) AS x", "bigint"),
        ("max(items > 2) AS x", "boolean"),
        ("sum(items / 2) AS x", "double"),
        ("sum(try_add(items, 1)) AS x", "bigint"),
    ],
)
def test_aggregates_have_sparks_types(selected: str, type: str) -> None:
    (aggregate,) = aggregates(selected)
    assert aggregate.type == type


def test_a_filter_applies_only_to_its_aggregate() -> None:
    filtered, counted, everything = aggregates(
        "sum(amount) FILTER (WHERE items > 2) AS a, count(*) FILTER (WHERE items > 2) AS b, count(1) AS c"
    )
    assert filtered.argument is not None and filtered.argument.operation == "if"
    assert counted == Aggregate("b", "count", aggregates("count_if(items > 2) AS b")[0].argument)
    assert everything.argument is None


def test_group_columns_that_are_not_selected_identify_groups() -> None:
    found = query(f"SELECT count(*) AS n GROUP BY country, device {WINDOW}")
    assert [group.name for group in found.groups] == ["country", "device"]
