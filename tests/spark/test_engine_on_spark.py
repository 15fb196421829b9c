"""The whole engine on Spark, through the test harness: chains, shared operators, several sinks, keys with nulls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from epochal import KeyedProcess, MapState, Pipeline, ValueState
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.errors import EpochAborted
from epochal.testing import Harness
from tests.kit.reminders import RemindersOperator

COLUMNS = {"user": "cast(id as string)", "item": "cast(id as string)", "amount": "cast(id as int)"}


class Baskets(KeyedProcess):
    """Counts per item within a user's basket. Outputs the user's running total."""

    total = ValueState("total bigint")
    items = MapState(key="item string", value="amount bigint")
    output = "user string, total bigint, items int"
    order_by = "item"

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            if row.amount < 0:
                raise ValueError(f"negative amount {row.amount}")
            self.items.put(row.item, self.items.get(row.item, 0) + row.amount)
            self.total.set((self.total.get() or 0) + row.amount)
        yield key.user, self.total.get(), len(list(self.items.items()))


def build() -> Pipeline:
    """Two operators in a chain; the first is read by a sink and by the second operator."""
    pipeline = Pipeline("baskets")
    events = pipeline.read("events", generator.source(COLUMNS))
    baskets = events.key_by("user").process(Baskets)
    baskets.write("baskets", console.sink())
    sizes = baskets.key_by("items").aggregate("sizes", users="count(*)", best="max(total)")
    sizes.write("sizes", console.sink())
    return pipeline


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.parametrize("backend", ["heap", pytest.param("lmdb", marks=pytest.mark.long)])
@pytest.mark.alternating(2)
def test_chain_with_a_shared_operator_gives_both_outputs(spark: SparkSession, backend: str) -> None:
    with Harness(build(), spark, Configuration(state_backend=backend, epoch_interval_seconds=0)) as test:
        first = test.epoch(events=[("ann", "tea", 3), ("bob", "rum", 5), ("ann", "jam", 4)])
        assert rows(first["baskets"]) == [("ann", 7, 2), ("bob", 5, 1)]
        assert rows(first["sizes"]) == [(1, 1, 5), (2, 1, 7)]
        second = test.epoch(events=[("bob", "gin", 1)])
        assert rows(second["baskets"]) == [("bob", 6, 2)]
        assert rows(second["sizes"]) == [(2, 2, 7)]
        assert rows(test.state("baskets.total")) == [("ann", 7), ("bob", 6)]
        assert rows(test.state("baskets.items")) == [
            ("ann", "jam", 4),
            ("ann", "tea", 3),
            ("bob", "gin", 1),
            ("bob", "rum", 5),
        ]


def test_state_survives_a_restart_and_an_aborted_epoch_leaves_no_trace(spark: SparkSession) -> None:
    with Harness(build(), spark) as test:
        test.epoch(events=[("ann", "tea", 3)])
        with pytest.raises(EpochAborted, match="negative amount -1"):
            test.epoch(events=[("ann", "tea", -1)])
        assert rows(test.state("baskets.total")) == [("ann", 3)]
        test.restart()
        assert rows(test.state("baskets.total")) == [("ann", 3)]


@pytest.mark.parametrize("parallelism", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.alternating(2)
def test_any_parallelism_gives_the_same_result(spark: SparkSession, parallelism: int) -> None:
    """3 does not divide the maximum, so that the aggregate needs a separate shuffle."""
    configuration = Configuration(parallelism=parallelism, state_backend="heap", epoch_interval_seconds=0)
    with Harness(build(), spark, configuration) as test:
        outputs = test.epoch(events=[(f"user{n % 50}", "tea", n) for n in range(200)])
        assert len(rows(outputs["baskets"])) == 50
        assert rows(outputs["sizes"]) == [(1, 50, max(sum(range(u, 200, 50)) for u in range(50)))]
        empty = test.epoch(events=[])
        assert rows(empty["baskets"]) == []


class Sums(KeyedProcess):
    total = ValueState("total bigint, rows bigint")
    output = "user string, item string, total bigint, rows bigint"

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        old = self.total.get() or (0, 0)
        self.total.set(old[0] + sum(row.amount for row in rows), old[1] + len(rows))
        yield *key, *self.total.get()


@pytest.mark.parametrize("parallelism", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.alternating(2)
def test_keys_with_nulls_are_the_groups_of_sparks_batch(spark: SparkSession, parallelism: int, run_seed: int) -> None:
    """Any column of a key may be null. With 2 subtasks, operators use the shuffle of Spark's aggregation; with 3,
    they do not."""
    chance = random.Random(run_seed)
    columns = COLUMNS | {"user": "nullif('', '')", "item": "nullif('', '')"}
    pipeline = Pipeline("nulls")
    keyed = pipeline.read("events", generator.source(columns)).key_by("user", "item")
    keyed.aggregate("aggregated", total="sum(amount)", rows="count(*)").write("aggregated", console.sink())
    keyed.process(Sums, name="processed").write("processed", console.sink())
    values = [None, None, "", "\0", "a", *map(str, range(12))]
    epochs = [
        [(chance.choice(values), chance.choice(values), chance.randint(-9, 9)) for _ in range(rows)]
        for rows in (100, chance.choice([1, 50]))
    ]
    epochs[1] += [(None, None, 5)] * 3
    configuration = Configuration(parallelism=parallelism, state_backend="heap", epoch_interval_seconds=0)
    with Harness(pipeline, spark, configuration) as test:
        for input in epochs:
            outputs = test.epoch(events=input)
            touched = {row[:2] for row in input}
            assert {(row["user"], row["item"]) for row in outputs["aggregated"].to_pylist()} == touched
        every = spark.createDataFrame([row for input in epochs for row in input], "user string, item string, n int")
        batch = every.groupBy("user", "item").agg(F.sum("n").alias("total"), F.count("*").alias("rows"))
        expected = {(row.user, row["item"]): (row.total, row.rows) for row in batch.collect()}
        for table in ("aggregated", "processed.total"):
            state = test.state(table)
            found = {(row["user"], row["item"]): (row["total"], row["rows"]) for row in state.to_pylist()}
            assert state.num_rows == len(found)
            assert found == expected


@pytest.mark.alternating(2)
def test_epoch_without_rows_runs_due_work(spark: SparkSession) -> None:
    pipeline = Pipeline("reminders")
    keyed = pipeline.read("events", generator.source({"name": "cast(id as string)", "n": "id"})).key_by("name")
    keyed._operator(RemindersOperator(), parallelism=None).write("due", console.sink())
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    with Harness(pipeline, spark, Configuration(epoch_interval_seconds=0), now=lambda: now[0]) as test:
        assert rows(test.epoch(events=[("ann", 60), ("bob", 90)])["due"]) == []
        assert rows(test.epoch()["due"]) == []
        now[0] += timedelta(seconds=60)
        test.restart()
        assert rows(test.epoch()["due"]) == [("ann",)]
        assert rows(test.state("reminders.at")) == [("bob", now[0] + timedelta(seconds=30))]
        now[0] += timedelta(seconds=30)
        assert rows(test.epoch(events=[("cem", 1)])["due"]) == [("bob",)]
        opened_for = [record.opened_for for record in test._engine.decided]
        assert opened_for == [("input",), ("command",), ("due",), ("input", "due")]
