"""State without a key on Spark: the distribution of rows, the ownership of elements, and rescaling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import KeyedProcess, ListState, Pipeline, UnkeyedProcess, ValueState
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.errors import EpochAborted, PipelineError
from epochal.operators.distribution import Distribution, Input, Subtasks, united
from epochal.pipeline.analysis import analyse
from epochal.testing import Harness

COLUMNS = {"id": "id", "amount": "cast(id as double)"}


class Batches(UnkeyedProcess):
    """Gathers rows into batches of ``size``, over epochs."""

    waiting = ListState("id bigint, amount double", scope="operator")
    output = "subtask int, ids array<bigint>"
    order_by = "id"
    size = 3

    def process(self, rows: Iterable[Any], ctx: Any) -> Iterator[Any]:
        held = self.waiting.get()
        for row in rows:
            held.append((row.id, row.amount))
            if len(held) == self.size:
                yield ctx.subtask, [each[0] for each in held]
                held = []
        self.waiting.clear()
        self.waiting.extend(held)


class Kept(UnkeyedProcess):
    """Stores every row. Returns all that the subtask has stored."""

    seen = ListState("id bigint", scope="operator")
    output = "subtask int, ids array<bigint>"
    order_by = ("id",)

    def process(self, rows: Iterable[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            self.seen.append(row.id)
        yield {"subtask": ctx.subtask, "ids": self.seen.get()}


class KeptByAll(Kept):
    seen = ListState("id bigint", scope="union")

    def process(self, rows: Iterable[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            if row.id < 0:
                self.seen.clear()
            else:
                self.seen.append(row.id)
        yield ctx.subtask, self.seen.own()
        yield ctx.subtask + 100, self.seen.get()


def build(process: type[UnkeyedProcess], **settings: Any) -> Pipeline:
    pipeline = Pipeline("unkeyed")
    pipeline.read("rows", generator.source(COLUMNS)).process_any(process, **settings).write("out", console.sink())
    return pipeline


def configuration(parallelism: int, backend: str = "heap") -> Configuration:
    return Configuration(parallelism=parallelism, max_parallelism=8, state_backend=backend, epoch_interval_seconds=0)


def given(*ids: int) -> list[tuple[Any, ...]]:
    return [(id, float(id)) for id in ids]


def by_subtask(table: Any) -> dict[int, list[int]]:
    return dict(zip(table["subtask"].to_pylist(), table["ids"].to_pylist(), strict=True))


@pytest.mark.parametrize("backend", ["heap", pytest.param("lmdb", marks=pytest.mark.long)])
@pytest.mark.alternating(3)
def test_operator_state_is_redistributed_round_robin_by_a_rescale(spark: SparkSession, backend: str) -> None:
    with Harness(build(Kept), spark, configuration(2, backend)) as test:
        held = by_subtask(test.epoch(rows=given(*range(8)))["out"])
        assert sorted(chain.from_iterable(held.values())) == list(range(8))
        assert all(ids == sorted(ids) and len(ids) == 4 for ids in held.values()), "in order, no skew"
        more = by_subtask(test.epoch(rows=given(*range(8, 12)))["out"])
        assert all(more[subtask][:4] == held[subtask] for subtask in held), "each subtask continues with its own"
        for parallelism in (3, 1, 2):
            test.restart(parallelism=parallelism)
            now = by_subtask(test.epoch(rows=[])["out"])
            assert sorted(now) == list(range(parallelism)), "also subtasks without rows are called"
            assert sorted(chain.from_iterable(now.values())) == list(range(12)), "every element is in one list"
            assert max(map(len, now.values())) - min(map(len, now.values())) <= 3
        rows = test.state("kept.seen").to_pylist()
        assert len({(row["_group"], row["_index"]) for row in rows}) == 12
        assert sorted(row["id"] for row in rows) == list(range(12))


@pytest.mark.alternating(2)
def test_rewritten_list_contains_no_old_elements(spark: SparkSession) -> None:
    with Harness(build(Batches, size=5), spark, configuration(2)) as test:
        returned = test.epoch(rows=given(*range(8)))["out"].num_rows
        assert returned == 0
        assert test.state("batches.waiting").num_rows == 8
        outputs = test.epoch(rows=given(*range(8, 16)))["out"].to_pylist()
        assert sorted(len(row["ids"]) for row in outputs) == [5, 5]
        ids = [id for row in outputs for id in row["ids"]]
        kept = test.state("batches.waiting")["id"].to_pylist()
        assert sorted(ids + kept) == list(range(16))


@pytest.mark.alternating(2)
def test_union_state_is_read_by_all_subtasks_and_written_by_its_own(spark: SparkSession) -> None:
    with Harness(build(KeptByAll), spark, configuration(2)) as test:
        test.epoch(rows=given(*range(6)))
        seen = by_subtask(test.epoch(rows=[])["out"])
        assert sorted(seen[0] + seen[1]) == sorted(seen[100]) == sorted(seen[101]) == list(range(6))
        test.restart(parallelism=3)
        seen = by_subtask(test.epoch(rows=[])["out"])
        assert all(sorted(seen[100 + subtask]) == list(range(6)) for subtask in range(3))
        assert sorted(seen[0] + seen[1] + seen[2]) == list(range(6))
        cleared = by_subtask(test.epoch(rows=given(-1))["out"])
        (one,) = (subtask for subtask in range(3) if cleared[subtask] == [] and seen[subtask])
        left = sorted(set(range(6)) - set(seen[one]))
        assert sorted(cleared[100 + one]) == left, "the elements of the others are still read"
        assert sorted(test.state("kept_by_all.seen")["id"].to_pylist()) == left


def test_distribution_of_rows_is_the_same_in_every_retry(spark: SparkSession) -> None:
    """For any order of the rows of a partition, also with columns that Spark cannot sort by."""
    rows = [(n % 5, {"b": n % 3, "a": n}, [{"x": {n: "y"}}]) for n in range(40)]
    schema = "id int, tags map<string,int>, nested array<struct<x:map<int,string>>>"

    def distributed(order: list[Any]) -> Counter[Any]:
        frame = spark.createDataFrame(order, schema).coalesce(1)
        subtasks = Subtasks.of(spark, 3, 8)
        united_rows = united([frame], [Input("rows", Distribution.TO_ANY)], (), subtasks).where("_mark IS NULL")
        return Counter((row["_subtask"], repr(sorted(row["tags"].items()))) for row in united_rows.collect())

    other_order = [(id, dict(reversed(tags.items())), nested) for id, tags, nested in reversed(rows)]
    assert distributed(rows) == distributed(other_order)
    assert sorted(Counter(subtask for subtask, _ in distributed(rows).elements()).values()) == [13, 13, 14]


def test_an_operator_without_any_row_is_called(spark: SparkSession) -> None:
    with Harness(build(Kept), spark, configuration(3)) as test:
        assert by_subtask(test.epoch(rows=[])["out"]) == {0: [], 1: [], 2: []}


class Wrong(UnkeyedProcess):
    output = "id bigint"
    total = 0

    def process(self, rows: Iterable[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            if row.id == 3:
                raise ValueError("three")
            self.total = 1
            yield (row.id,)


@pytest.mark.parametrize(
    ("id", "message"),
    [
        (3, "Operator 'wrong', subtask 0: the author's code raised ValueError: three"),
        (1, r"Wrong\.total is written while rows are processed"),
    ],
)
def test_errors_of_authors_are_named_with_the_operator(spark: SparkSession, id: int, message: str) -> None:
    with Harness(build(Wrong), spark, configuration(1)) as test, pytest.raises(EpochAborted, match=message):
        test.epoch(rows=given(id))


def test_invalid_scopes_are_refused(spark: SparkSession) -> None:
    class Keyed(UnkeyedProcess):
        total = ValueState("total bigint")
        output = "id bigint"

        def process(self, rows: Iterable[Any], ctx: Any) -> Any: ...

    class Unkeyed(KeyedProcess):
        waiting = ListState("id bigint", scope="operator")
        output = "id bigint"

        def process(self, key: Any, rows: Any, ctx: Any) -> Any: ...

    stream = Pipeline("refused").read("rows", generator.source(COLUMNS))
    with pytest.raises(
        PipelineError, match=r"'keyed': state 'total' of Keyed has the scope 'keyed'; .*scope='operator'"
    ):
        stream.process_any(Keyed)
    with pytest.raises(
        PipelineError, match=r"'unkeyed': state 'waiting' of Unkeyed has the scope 'operator'; .*process_any"
    ):
        stream.key_by("id").process(Unkeyed)
    with pytest.raises(PipelineError, match="takes a subclass of UnkeyedProcess"):
        stream.process_any(Unkeyed)  # type: ignore[type-var]
    with pytest.raises(
        PipelineError, match="ValueState cannot have scope 'operator'; it must be one of keyed, broadcast"
    ):
        ValueState("total bigint", scope="operator")
    with pytest.raises(PipelineError, match=r"has no setting 'sise'.*Did you mean 'size'"):
        stream.process_any(Batches, sise=3)
    pipeline = Pipeline("refused")
    stream = pipeline.read("rows", generator.source(COLUMNS))
    stream.with_columns(_group="1").process_any(Kept).write("out", console.sink())
    with pytest.raises(PipelineError, match="'_group', a reserved name"):
        analyse(pipeline.graph(), spark)
