"""Standing queries have Spark's semantics: random expressions and queries compared with Spark over the same rows."""

from __future__ import annotations

import json
import math
import random
import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.contracts.conditions import BEGINNING
from epochal.declarations.intervals import written_interval
from epochal.operators.standing_queries.evaluation import Rows
from epochal.standing_queries.binding import bound
from tests.kit.standing import COLUMNS, Grammar, rows
from tests.kit.standing_lives import batch


@pytest.mark.long
@pytest.mark.claim("Thesis, 4.4.1")
def test_expressions_and_aggregates_equal_those_of_spark(spark: SparkSession) -> None:
    chance = random.Random(7)
    grammar, table = Grammar(chance), rows(chance, 150)
    frame = spark.createDataFrame(table)
    texts = [grammar.condition() if number % 2 else grammar.number(2) for number in range(90)]
    found = [bound(f"SELECT count({text}) AS n WINDOW '1 hour'", COLUMNS).aggregates[0].argument for text in texts]
    accepted = [(text, expression) for text, expression in zip(texts, found, strict=True) if expression is not None]
    chunk = Rows(table.combine_chunks().to_batches()[0])
    spark.conf.set("spark.sql.ansi.enabled", "true")
    answered = frame.selectExpr(*(f"{text} AS c{number}" for number, (text, _) in enumerate(accepted))).toArrow()
    for number, (text, expression) in enumerate(accepted):
        mine = chunk.value(expression).to_pylist()
        assert all(map(_same, mine, answered.column(number).to_pylist())), text

    frame.createOrReplaceTempView("rows_of_standing_queries")
    for text in [grammar.query() for _ in range(8)]:
        query = bound(text, COLUMNS)
        batched = {(end, group): json.loads(values) for _, end, group, values in batch(1, query, table, BEGINNING)}
        assert batched == _of_spark(spark, text, [each.name for each in query.groups], query.size, query.slide), text


def _of_spark(spark: SparkSession, text: str, groups: list[str], size: int, slide: int) -> dict[Any, Any]:
    """The same query as one batch, with Spark's own windows."""
    text, _, having = text.removeprefix("SELECT ").rpartition(" WINDOW ")[0].partition(" HAVING ")
    selected, _, rest = text.partition(" WHERE ")
    where, _, grouped = rest.partition(" GROUP BY ")
    if not rest:
        selected, _, grouped = selected.partition(" GROUP BY ")
    selected, *remembered = re.split(r", remember\((.*)\) AS before", selected)
    window = f"window(at, '{written_interval(size)}', '{written_interval(slide)}')"
    by = f"{window}{', ' + grouped if grouped else ''}"
    statement = f"SELECT {window}.end AS _end, {selected} FROM rows_of_standing_queries"
    if where:
        statement += f" WHERE {where}"
    statement += f" GROUP BY {by}"
    # HAVING is over the results, including previous values.
    for name, aggregate in _aggregates(selected):
        having = having.replace(aggregate, name)
        remembered = [each.replace(aggregate, name) for each in remembered]
    for of in remembered[:1]:
        over = f"OVER (PARTITION BY {', '.join(f'g{n}' for n in range(len(groups))) or '1'} ORDER BY _end)"
        reach = f"INTERVAL '{30 * slide // 1_000_000}' SECOND"
        statement = (
            f"SELECT *, IF(_end - lag(_end) {over} <= {reach}, lag({of}) {over}, NULL) AS before FROM ({statement})"
        )
        having = re.sub(r"remember\(\w+\)", "before", having)
    if having:
        statement = f"SELECT * FROM ({statement}) WHERE {having}"
    found = {}
    for row in spark.sql(statement).toArrow().to_pylist():
        end = row.pop("_end")
        shown = {name: _json(value) for name, value in row.items()}
        group = json.dumps({name: shown.pop(name) for name in groups}, ensure_ascii=False, separators=(",", ":"))
        found[end, group] = shown
    return found


def _aggregates(selected: str) -> list[tuple[str, str]]:
    """Names and texts, longer texts first, as one may contain another."""
    found = re.findall(r"(?:^|, )((?:count|count_if|sum|avg|min|max)\(.*?) AS (a\d)(?=,|$)", selected)
    return sorted(((name, text) for text, name in found), key=lambda each: -len(each[1]))


def _json(value: Any) -> Any:
    """The value in the form of results."""
    from epochal.state.json_form import to_json

    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    name = type(value).__name__
    kind = {"int": "bigint", "float": "double", "date": "date", "datetime": "timestamp"}.get(name)
    return str(value) if kind is None else to_json(value, kind)


def _same(mine: Any, other: Any) -> bool:
    if isinstance(mine, float) and isinstance(other, float) and math.isnan(mine):
        return math.isnan(other)
    return mine == other and (mine is None) == (other is None)
