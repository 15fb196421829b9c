"""Collected values in a running pipeline: over epochs and a restart, for every reader."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import epochal
from epochal import Pipeline
from epochal import functions as F
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.testing import Harness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def build() -> Pipeline:
    pipeline = Pipeline("p")
    columns = {
        "k": "cast(id as string)",
        "v": "cast(nullif(id, -1) as int)",
        "paid": "cast(nullif(id, -1) as decimal(6,2))",
    }
    keyed = pipeline.read("rows", generator.source(columns)).key_by("k")
    keyed.aggregate(
        "seen",
        every=F.collect_list("v", limit=3),
        once="collect_set(v)",
        distinct="count(DISTINCT v)",
        total="sum(DISTINCT paid)",
        largest="try_element_at(collect_list(paid), -1)",
    ).write("out", console.sink())
    return pipeline


def by_key(rows: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    return {row["k"]: tuple(row[name] for name in ("every", "once", "distinct", "total")) for row in rows}


@pytest.mark.alternating(3)
def test_collected_values_are_the_same_for_every_reader(spark: SparkSession) -> None:
    price = Decimal("0.10")
    with Harness(build(), spark, Configuration(state_backend="lmdb", epoch_interval_seconds=0)) as test:
        test.epoch(rows=[("a", 3, price), ("a", 1, price), ("b", None, None)])
        test.restart()
        out = test.epoch(rows=[("a", 3, 2 * price), ("b", 7, price)])["out"].to_pylist()
        expected = {"a": ([1, 3, 3], [1, 3], 2, 3 * price), "b": ([7], [7], 1, price)}
        assert by_key(out) == expected
        assert {row["k"]: row["largest"] for row in out} == {"a": 2 * price, "b": price}

        state = epochal.read_state(spark, test.store, "seen").collect()
        assert by_key([row.asDict() for row in state]) == expected
