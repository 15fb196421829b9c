"""Aggregates over changes equal a batch query over the newest values, for any cuts into epochs."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.contracts.stream_kind import CHANGE
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
@pytest.mark.alternating(3)
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
            for name, visible in shown.items():
                for row in outputs[name].to_pylist():
                    change = row.pop(CHANGE)
                    visible[repr(row)] += change
                    assert visible[repr(row)] in (0, 1), (seed, name, row)
            newest |= {row["auctions"]: row for row in outputs["third"].to_pylist()}
        tables = {table.id: test.state(table.id).num_rows for table in test.state_tables}
        frame = spark.createDataFrame(
            [tuple(row.values()) for rows in epochs for row in rows],
            "word string, auction bigint, price decimal(12,2), rate double, big bigint",
        )
        batch = expected(spark, frame)
    for name, visible in shown.items():
        assert +visible == Counter(map(repr, batch[name])), (seed, name)
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


TTL = timedelta(minutes=10)


def change_data() -> Pipeline:
    """The newest version of each item, and totals of the items that are not deleted."""
    pipeline = Pipeline("change-data")
    columns = {"item": "id", "version": "id", "operation": "'upsert'", "shop": "cast(id AS string)", "price": "id"}
    rows = pipeline.read("rows", generator.source(columns))
    items = rows.key_by("item").aggregate(
        "items",
        changes=True,
        ttl="10 minutes",
        deleted_when="gone",
        gone="max_by(operation = 'delete', version)",
        shop="max_by(shop, version)",
        price="max_by(price, version)",
    )
    shops = items.key_by("shop").aggregate("shops", items="count(*)", total="sum(price)", dearest="max(price)")
    items.write("items", console.sink())
    shops.write("shops", console.sink())
    return pipeline


@pytest.mark.slow
def test_deleted_keys_are_retracted_and_their_state_expires(spark: SparkSession, run_seed: int) -> None:
    """Inserts, updates, deletes and expiries in any order, compared with a batch over the rows of the live groups."""
    choose = random.Random(run_seed)
    backend = choose.choice(["heap", "lmdb"])
    configuration = Configuration(state_backend=backend, parallelism=2, max_parallelism=12, epoch_interval_seconds=0)
    groups: dict[int, list[dict[str, Any]]] = {}
    touched: dict[int, datetime] = {}
    shops: dict[str, dict[str, Any]] = {}
    visible: Counter[Any] = Counter()
    now, expired, deleted = datetime(2024, 5, 1, tzinfo=UTC), 0, 0
    versions = list(range(1000))
    with Harness(change_data(), spark, configuration) as test:
        for number in range(10):
            now += timedelta(minutes=choose.choice([1, 4, 6, 11]))
            for item in list(groups):
                if newest(groups[item])["operation"] == "delete" and touched[item] + TTL <= now:
                    del groups[item]
                    expired += 1
            rows = [
                {
                    "item": choose.randrange(5),
                    "version": versions.pop(choose.randrange(min(len(versions), 20))),  # some are late
                    "operation": choose.choice(["insert", "update", "delete", "delete"]),
                    "shop": choose.choice("ab"),
                    "price": choose.randrange(100),
                }
                for _ in range(choose.choice([1, 2, 6]))
            ]
            for row in rows:
                groups.setdefault(row["item"], []).append(row)
                touched[row["item"]] = now
            if number == 5:
                test.restart(parallelism=3)
            outputs = test.epoch(at=now, rows=rows)
            for row in outputs["items"].to_pylist():
                visible[row["item"], row["shop"], row["price"]] += row[CHANGE]
                assert row["gone"] is False, run_seed
            shops |= {row.pop("shop"): row for row in outputs["shops"].to_pylist()}
            live = [newest(of_item) for of_item in groups.values()]
            deleted += sum(row["operation"] == "delete" for row in live)
            live = [row for row in live if row["operation"] != "delete"]
            assert +visible == Counter((row["item"], row["shop"], row["price"]) for row in live), (run_seed, number)
            assert min(visible.values(), default=0) >= 0, (run_seed, number)
            assert {shop: row for shop, row in shops.items() if row["items"]} == totals(live), (run_seed, number)
            assert sorted(test.state("items")["item"].to_pylist()) == sorted(groups), (run_seed, number)
            assert test.state("shops").num_rows == len(totals(live))
    assert expired and deleted


def newest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return max(rows, key=lambda row: row["version"])


def totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """``SELECT shop, count(*), sum(price), max(price) FROM rows GROUP BY shop``."""
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["shop"], []).append(row["price"])
    return {shop: {"items": len(all), "total": sum(all), "dearest": max(all)} for shop, all in found.items()}
