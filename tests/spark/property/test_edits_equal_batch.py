"""Random edits of random pipelines: with the verdict *same*, both versions compute the same values.

The model is a batch query over the same rows, in Spark SQL that this module generates. Edits are rewritings that
preserve the meaning, and mutations that may change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.pipeline.analysis import analyse
from epochal.state.evolution import compare
from epochal.state.table import StateTable

SOURCE = {"k": "cast(id % 3 AS string)", "a": "id % 7", "b": "id % 5 - 2", "c": "id % 11"}
ROWS = 60


@dataclass(frozen=True)
class Step:
    """A filter by the conditions in ``where``, joined by AND; otherwise a column with this name and text."""

    where: tuple[str, ...] = ()
    name: str = ""
    text: str = ""


@dataclass(frozen=True)
class Program:
    """Steps, then aggregates by name over the columns. Column names are unique, so that steps may be moved."""

    steps: tuple[Step, ...]
    aggregates: tuple[tuple[str, str], ...]

    def build(self) -> Pipeline:
        pipeline = Pipeline("edited")
        stream = pipeline.read("rows", generator.source(SOURCE))
        for step in self.steps:
            stream = (
                stream.where(" AND ".join(step.where)) if step.where else stream.with_columns(**{step.name: step.text})
            )
        stream.key_by("k").aggregate("totals", **dict(self.aggregates)).write("out", console.sink())
        return pipeline

    def batch(self, rows: DataFrame) -> list[tuple[Any, ...]]:
        """Columns in the order of their names."""
        for step in self.steps:
            if step.where:
                for condition in step.where:
                    rows = rows.where(condition)
            else:
                rows = rows.selectExpr(
                    *[f"`{name}`" for name in rows.columns if name != step.name], f"{step.text} AS {step.name}"
                )
        columns = [f"{text} AS {name}" for name, text in sorted(self.aggregates)]
        rows.createOrReplaceTempView("edited_rows")
        found = rows.sparkSession.sql(f"SELECT k, {', '.join(columns)} FROM edited_rows GROUP BY k ORDER BY k")
        return [tuple(row) for row in found.collect()]


CONSTANTS = st.integers(-3, 9).map(str)
COLUMNS = st.sampled_from(["a", "b", "c"])


@st.composite
def values(draw: st.DrawFn, names: list[str]) -> str:
    """Numeric expressions over columns, which never overflow."""
    one, other = draw(st.sampled_from(names)), draw(st.one_of(st.sampled_from(names), CONSTANTS))
    sign = draw(st.sampled_from(["+", "-", "*"]))
    return draw(
        st.sampled_from(
            [
                one,
                f"{one} {sign} ({other})",
                f"if({one} > {other}, {one}, 0)",
                f"coalesce({one}, {other})",
                f"abs({one})",
            ]
        )
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    names, steps = ["a", "b", "c"], []
    for number in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            compared = st.tuples(st.sampled_from(names), st.sampled_from(["<", ">="]), CONSTANTS).map(" ".join)
            steps.append(Step(where=tuple(draw(st.lists(compared, min_size=1, max_size=3)))))
        else:
            name = draw(st.sampled_from([f"d{number}", "b"]))
            steps.append(Step(name=name, text=draw(values(names))))
            names = sorted({*names, name})
    functions = ["sum({})", "min({})", "max({})", "count({})", "avg({})", "sum({}) FILTER (WHERE a > 2)"]
    aggregates = []
    for name in ("p", "q"):
        text = draw(values(names))
        aggregates.append((name, draw(st.sampled_from(functions)).format(text)))
    return Program(tuple(steps), tuple(aggregates))


def rewritings(program: Program) -> Iterator[Program]:
    """Programs with the same meaning."""
    steps, aggregates = program.steps, program.aggregates
    spelled = tuple((name, f"( {text.replace('sum', 'SUM')} ) /* c */") for name, text in aggregates)
    yield replace(program, aggregates=spelled)
    yield replace(program, aggregates=tuple(reversed(aggregates)))
    yield replace(program, aggregates=tuple((name, text.replace("avg", "mean")) for name, text in aggregates))
    yield replace(program, steps=(Step(name="extra", text="upper(k)"), *steps))
    yield replace(program, steps=tuple(replace(step, where=step.where[::-1]) for step in steps))
    yield replace(
        program,
        steps=tuple(
            each for step in steps for each in ([Step(where=(one,)) for one in step.where] if step.where else [step])
        ),
    )
    yield replace(
        program,
        steps=(*steps, Step(name="renamed", text="`A`")),
        aggregates=tuple((name, _renamed(text)) for name, text in aggregates),
    )


def _renamed(text: str) -> str:
    """The text with column ``a`` renamed. Names of functions are longer."""
    return "".join("renamed" if word == "a" else word for word in _words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\W", text)


@st.composite
def mutated(draw: st.DrawFn, program: Program) -> Program:
    """A program whose meaning may differ: one word of one text is replaced, or a step is removed."""
    words = {
        "a": "c",
        "b": "a",
        "c": "b",
        "min": "max",
        "max": "min",
        "sum": "avg",
        "count": "sum",
        "<": ">=",
        "+": "-",
    }
    steps, aggregates = list(program.steps), list(program.aggregates)
    what = draw(st.sampled_from(["step", "aggregate", "remove"]))
    if what == "remove" and steps:
        removed = draw(st.integers(0, len(steps) - 1))
        if steps[removed].where:
            return replace(program, steps=tuple(steps[:removed] + steps[removed + 1 :]))
    if what == "step" and steps:
        at = draw(st.integers(0, len(steps) - 1))
        step = steps[at]
        if step.where:
            steps[at] = replace(step, where=(_changed(draw, step.where[0], words), *step.where[1:]))
        else:
            steps[at] = replace(step, text=_changed(draw, step.text, words))
        return replace(program, steps=tuple(steps))
    at = draw(st.integers(0, len(aggregates) - 1))
    name, text = aggregates[at]
    aggregates[at] = (name, _changed(draw, text, words))
    return replace(program, aggregates=tuple(aggregates))


def _changed(draw: st.DrawFn, text: str, words: dict[str, str]) -> str:
    found = _words(text)
    places = [place for place, word in enumerate(found) if word in words or word.isdigit()]
    if not places:
        return text
    place = draw(st.sampled_from(places))
    found[place] = words.get(found[place]) or str(int(found[place]) + draw(st.integers(0, 2)))
    return "".join(found)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    made = spark.range(ROWS).selectExpr(*(f"{text} AS {name}" for name, text in SOURCE.items())).localCheckpoint()
    return made.coalesce(1)


def tables_of(program: Program, spark: SparkSession) -> tuple[StateTable, ...]:
    found = analyse(program.build().graph(), spark).tables
    return tuple(StateTable.model_validate_json(table.model_dump_json()) for table in found)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_edit_with_verdict_same_computes_the_same_values(
    data: st.DataObject, spark: SparkSession, rows: DataFrame
) -> None:
    before = data.draw(programs())
    after = before
    for _ in range(data.draw(st.integers(0, 3))):
        after = data.draw(st.sampled_from(list(rewritings(after))))
    kept = after
    if data.draw(st.integers(0, 2)):
        after = data.draw(mutated(after))
    changes = compare(tables_of(before, spark), tables_of(after, spark))
    if after == kept:
        assert [problem for change in changes for problem in change.problems] == []
    if all(change.verdict == "same" for change in changes):
        assert after.batch(rows) == before.batch(rows)
    else:
        assert all(change.problems or change.verdict in ("same", "evolved") for change in changes)
