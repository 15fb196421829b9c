"""Standing queries mean what Spark means by them: random expressions and queries against Spark over the same rows."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal.contracts.conditions import BEGINNING
from epochal.declarations.intervals import written_interval
from epochal.standing.binding import bound
from epochal.tasks.standing_expressions import Rows
from tests.standing import COLUMNS, Grammar, rows
from tests.unit.test_standing_queries import batch


@pytest.mark.long
def test_expressions_and_aggregates_are_those_of_spark(spark: SparkSession) -> None:
    chance = random.Random(7)
    grammar, table = Grammar(chance), rows(chance, 150)
    frame = spark.createDataFrame(table)
    texts = [grammar.condition() if number % 2 else grammar.number(2) for number in range(90)]
    found = [bound(f"SELECT count({text}) AS n WINDOW '1 hour'", COLUMNS).aggregates[0].argument for text in texts]
    asked = [(text, expression) for text, expression in zip(texts, found, strict=True) if expression is not None]
    chunk = Rows(table.combine_chunks().to_batches()[0])
    spark.conf.set("spark.sql.ansi.enabled", "true")
    answered = frame.selectExpr(*(f"{text} AS c{number}" for number, (text, _) in enumerate(asked))).toArrow()
    for number, (text, expression) in enumerate(asked):
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
    window = f"window(at, '{written_interval(size)}', '{written_interval(slide)}')"
    by = f"{window}{', ' + grouped if grouped else ''}"
    statement = f"SELECT {window}.end AS _end, {selected} FROM rows_of_standing_queries"
    if where:
        statement += f" WHERE {where}"
    found = {}
    having = f" HAVING {having}" if having else ""
    for row in spark.sql(f"{statement} GROUP BY {by}{having}").toArrow().to_pylist():
        end = row.pop("_end")
        shown = {name: _json(value) for name, value in row.items()}
        group = json.dumps({name: shown.pop(name) for name in groups}, ensure_ascii=False, separators=(",", ":"))
        found[end, group] = shown
    return found


def _json(value: Any) -> Any:
    """As results show it."""
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
