"""An aggregation over every division of rows into epochs, in two Spark jobs: for the partials and for the output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as SF

from epochal.aggregates.plan import AggregationPlan
from epochal.declarations.expressions import Expression, to_column

SLICES = 5
SLICE, RANGE, CUT, SHOWN = "slice", "_range", "_cut", "_shown_"


def all_cuts() -> Iterator[list[tuple[int, int]]]:
    """Every division of slices 0 .. SLICES - 1 into consecutive epochs ``(from, to)``."""
    for number in range(SLICES):
        for inner in combinations(range(1, SLICES), number):
            bounds = [0, *inner, SLICES]
            yield list(pairwise(bounds))


def batch(frame: DataFrame, columns: dict[str, Any]) -> DataFrame:
    """Spark's result over all rows."""

    def spark(value: str | Expression) -> Column:
        return SF.expr(value) if isinstance(value, str) else to_column(value)

    return frame.groupBy("k").agg(*(spark(value).alias(name) for name, value in columns.items()))


def streamed(plan: AggregationPlan, frame: DataFrame) -> DataFrame:
    """The operator's output after the last epoch of each cut, with ``_cut``; ``_shown_NAME`` is what look-ups return.

    ``frame`` has the columns ``k`` string, ``slice`` int and the operator's input.
    """
    ranges = [(first, last) for first in range(SLICES) for last in range(first + 1, SLICES + 1)]
    within = [
        SF.when((SF.col(SLICE) >= first) & (SF.col(SLICE) < last), position)
        for position, (first, last) in enumerate(ranges)
    ]
    ranged = frame.withColumn(RANGE, SF.explode(SF.array_compact(SF.array(*within))))
    partials = ranged.groupBy("k", RANGE).agg(*plan.partial_columns()).toArrow().combine_chunks()
    keys, places = partials["k"].to_pylist(), partials[RANGE].to_pylist()
    row_of = {(place, key): row for row, (place, key) in enumerate(zip(places, keys, strict=True))}
    names = plan.table.value_schema.names
    new = partials.select(names)
    state, current = new.slice(0, 0).cast(plan.table.value_schema), {}
    cuts = list(all_cuts())
    for step in range(SLICES):
        owners, rows = [], []
        for number, cut in enumerate(cuts):
            for key in sorted(set(keys)):
                if step < len(cut) and (row := row_of.get((ranges.index(cut[step]), key))) is not None:
                    owners.append((number, key))
                    rows.append(row)
        if not owners:
            continue
        found = np.array([owner in current for owner in owners], dtype=bool)
        old = state.take(pa.array([current.get(owner) for owner in owners], pa.int64()))
        merged = plan.merge(found, old, new.take(rows))
        current |= {owner: state.num_rows + number for number, owner in enumerate(owners)}
        state = pa.concat_tables([state, merged])
    state = state.take(list(current.values())).combine_chunks()
    columns = {CUT: pa.array([cut for cut, _ in current], pa.int32()), "k": pa.array([key for _, key in current])}
    columns |= dict(zip(names, state.columns, strict=True))
    columns |= {column.name: values for column, values in zip(plan.computed, plan.compute(state), strict=True)}
    for shown in plan.table.shown:
        columns[SHOWN + shown.name] = shown.over(state)
    types = {CUT: "int", "k": "string"}
    types |= {column.name: column.type for column in (*plan.table.value, *plan.computed)}
    types |= {SHOWN + shown.name: shown.type for shown in plan.table.shown}
    schema = ", ".join(f"{name} {types[name]}" for name in columns)
    rows_of_task = frame.sparkSession.createDataFrame(pa.table(columns), schema)
    first, second = plan.finishing()
    lookups = [name for name in columns if name.startswith(SHOWN)]
    return rows_of_task.select(CUT, *lookups, *first).select(CUT, *lookups, *second)
