"""Aggregates over changes come to what a batch query over the newest values gives, whatever the cuts into epochs."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.contracts.stream_kind import CHANGE
from epochal.engine.settings import Configuration
from epochal.testing import Harness

ROWS = {
    "word": "nullif(cast(id AS string), '')",
    "auction": "id",
    "price": "cast(id AS decimal(12,2))",
    "rate": "cast(id AS double)",
    "big": "id",
}
EPOCHS = 4
FIRST = """SELECT auction, word, count(*) AS bids, count(price) AS prices, max(price) AS dearest, sum(big) AS big,
    min_by(rate, big) AS rate, sum(big) / count(*) AS share FROM rows GROUP BY auction, word"""
SECOND = """SELECT word, count(*) AS auctions, count(dearest) AS priced, sum(dearest) AS total, avg(dearest) AS mean,
    avg(bids) AS bids, sum(big) AS big, min(rate) AS least, max(rate) AS most, min(dearest) AS cheapest,
    max(dearest) - min(dearest) AS spread, count_if(bids > 2) AS busy, count(*) / count_if(true) AS one
    FROM first WHERE bids % 3 <> 0 GROUP BY word"""
THIRD = "SELECT auctions, count(*) AS words, max(word) AS last, sum(priced) AS priced FROM second GROUP BY auctions"


def pipeline() -> Pipeline:
    pipeline = Pipeline("changes")
    rows = pipeline.read("rows", generator.source(ROWS))
    first = rows.key_by("auction", "word").aggregate(
        "first",
        changes=True,
        bids="count(*)",
        prices="count(price)",
        dearest="max(price)",
        big="sum(big)",
        rate="min_by(rate, big)",
        share="sum(big) / count(*)",
    )
    second = (
        first.where("bids % 3 <> 0")
        .drop("share")
        .select("*", "bids > 2 AS busy")
        .key_by("word")
        .aggregate(
            "second",
            changes=True,
            auctions=F.count("*"),
            priced="count(dearest)",
            total="sum(dearest)",
            mean="avg(dearest)",
            bids="avg(bids)",
            big="sum(big)",
            least="min(rate)",
            most=F.max("rate"),
            cheapest="min(dearest)",
            spread="max(dearest) - min(dearest)",
            busy="count_if(busy)",
            one="count(*) / count_if(true)",
        )
    )
    third = second.key_by("auctions").aggregate("third", words="count(*)", last="max(word)", priced="sum(priced)")
    first.write("first", console.sink())
    second.write("second", console.sink())
    third.write("third", console.sink())
    return pipeline


def some_rows(choose: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "word": choose.choice([None, "", "a", "b", "c\x00", "c"]),
            "auction": choose.randrange(6),
            "price": choose.choice([None, Decimal(choose.randrange(-300, 300)) / 4]),
            "rate": choose.choice([-0.5, 1.5, float("inf"), float("nan"), -7.25]),
            "big": choose.randrange(2**40),
        }
        for _ in range(choose.randrange(1, 25))
    ]


@pytest.mark.slow
@pytest.mark.by_turns(3)
def test_chains_equal_the_batch_over_the_newest_values(spark: SparkSession) -> None:
    seed = random.randrange(2**32)
    choose = random.Random(seed)
    epochs = [some_rows(choose) for _ in range(EPOCHS)]
    shown: dict[str, Counter[str]] = {"first": Counter(), "second": Counter()}
    newest: dict[Any, Any] = {}
    backend = choose.choice(["heap", "lmdb"])
    configuration = Configuration(state_backend=backend, parallelism=2, max_parallelism=12, epoch_interval_seconds=0)
    with Harness(pipeline(), spark, configuration) as test:
        for number, rows in enumerate(epochs):
            if number == EPOCHS // 2:
                test.restart(parallelism=3)
            outputs = test.epoch(rows=rows)
            for name, there in shown.items():
                for row in outputs[name].to_pylist():
                    change = row.pop(CHANGE)
                    there[repr(row)] += change
                    assert there[repr(row)] in (0, 1), (seed, name, row)
            newest |= {row["auctions"]: row for row in outputs["third"].to_pylist()}
        tables = {table.id: test.state(table.id).num_rows for table in test.state_tables}
        frame = spark.createDataFrame(
            [tuple(row.values()) for rows in epochs for row in rows],
            "word string, auction bigint, price decimal(12,2), rate double, big bigint",
        )
        batch = expected(spark, frame)
    for name, there in shown.items():
        assert +there == Counter(map(repr, batch[name])), (seed, name)
    assert sorted(map(repr, (row for row in newest.values() if row["words"]))) == sorted(map(repr, batch["third"])), (
        seed
    )
    assert (tables["second"], tables["third"]) == (len(batch["second"]), len(batch["third"])), seed


def expected(spark: SparkSession, frame: DataFrame) -> dict[str, list[dict[str, Any]]]:
    frame.createOrReplaceTempView("rows")
    found = {}
    for name, query in {"first": FIRST, "second": SECOND, "third": THIRD}.items():
        result = spark.sql(query)
        result.createOrReplaceTempView(name)
        found[name] = result.toArrow().to_pylist()
    return found
