"""Partial state on Spark: the rows of each instance, merged answers, and instances after a rescale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from epochal import KeyedProcess, ListState, MapState, PartialProcess, Pipeline, To, ValueState
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.errors import EpochAborted, PipelineError
from epochal.testing import Harness

PAIRS, REQUESTS = {"item": "id", "other": "id"}, {"user": "id", "item": "id"}


class Similar(PartialProcess):
    """Items that were bought together."""

    together = MapState(key="item bigint, other bigint", value="times bigint", scope="partial", reconcile="sum")
    answer = "instance int, times map<bigint, bigint>"
    output = "user bigint, times map<bigint, bigint>, instances array<int>"
    sides: ClassVar = {"itself": "item bigint"}

    def process(self, rows: Iterable[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            if row.item == row.other:
                yield To("itself", (row.item,))
            else:
                pair = (row.item, row.other)
                self.together.put(pair, self.together.get(pair, 0) + 1)

    def process_global(self, request: Any, ctx: Any) -> Any:
        found = {other: times for (item, other), times in self.together.items() if item == request.item}
        return {"instance": ctx.subtask, "times": found} if found else None

    def merge(self, request: Any, answers: Sequence[Any], ctx: Any) -> Iterator[Any]:
        total: Counter[int] = Counter()
        for answer in answers:
            total.update(answer.times)
        yield request.user, dict(total), [answer.instance for answer in answers]


class Totals(PartialProcess):
    """A number in each instance. Every request is added to the numbers of all instances."""

    total = ValueState("total bigint", scope="partial", reconcile=lambda a, b: a + b)
    output = "instance int, total bigint"

    def process(self, rows: Iterable[Any], ctx: Any) -> list[Any]:
        for row in rows:
            self.total.set((self.total.get() or 0) + row.item)
        return [(ctx.subtask, self.total.get())]

    def process_global(self, request: Any, ctx: Any) -> Iterator[Any]:
        if request.user == 13:
            raise ValueError("thirteen")
        self.total.set((self.total.get() or 0) + request.user)
        yield ctx.subtask, self.total.get()


class Alone(PartialProcess):
    count = ValueState("count bigint", scope="partial")
    output = "count bigint"

    def process(self, rows: Iterable[Any], ctx: Any) -> list[Any]:
        self.count.set((self.count.get() or 0) + sum(1 for _ in rows))
        return [(self.count.get(),)]


def build(process: type[PartialProcess]) -> Pipeline:
    pipeline = Pipeline("partial")
    pairs = pipeline.read("pairs", generator.source(PAIRS))
    given = pairs.process_partial(process, requests=pipeline.read("requests", generator.source(REQUESTS)))
    given.write("out", console.sink())
    if process is Similar:
        given.side("itself").write("itself", console.sink())
    return pipeline


def configuration(parallelism: int) -> Configuration:
    return Configuration(parallelism=parallelism, max_parallelism=8, epoch_interval_seconds=0)


@pytest.mark.alternating(3)
@pytest.mark.claim("SDG, 4.2, rule 5")
def test_answers_of_all_instances_are_merged(spark: SparkSession) -> None:
    with Harness(build(Similar), spark, configuration(3)) as test:
        pairs = [(item, other) for item in range(4) for other in range(5)]
        out = test.epoch(pairs=pairs * 3, requests=[(7, 2), (8, 9), (7, 2)])
        rows = sorted(out["out"].to_pylist(), key=lambda row: row["user"])
        assert [row["user"] for row in rows] == [7, 7, 8], "one answer for each request, also for equal ones"
        assert all(dict(row["times"]) == {0: 3, 1: 3, 3: 3, 4: 3} for row in rows[:2])
        assert all(row["instances"] == sorted(row["instances"]) and len(row["instances"]) > 1 for row in rows[:2])
        assert (dict(rows[2]["times"]), rows[2]["instances"]) == ({}, [])
        assert sorted(row["item"] for row in out["itself"].to_pylist()) == sorted(list(range(4)) * 3)
        test.restart(parallelism=2)
        (row,) = test.epoch(requests=[(1, 2)])["out"].to_pylist()
        assert dict(row["times"]) == {0: 3, 1: 3, 3: 3, 4: 3}
        held = test.state("similar.together")
        assert set(held["_group"].to_pylist()) == {0, 1}
        assert sum(held["times"].to_pylist()) == 48


@pytest.mark.claim("SDG, 3.2, partial state")
def test_requests_reach_every_instance_after_its_rows(spark: SparkSession) -> None:
    with Harness(build(Totals), spark, configuration(2)) as test:
        out = test.epoch(pairs=[(3, 0), (4, 0)], requests=[(100, 0), (200, 0)])["out"].to_pylist()
        by_instance: dict[int, list[int]] = {0: [], 1: []}
        for row in sorted(out, key=lambda row: row["total"]):
            by_instance[row["instance"]].append(row["total"])
        assert sorted(by_instance.values()) == [[3, 103, 303], [4, 104, 304]]
        test.restart(parallelism=1)
        assert test.epoch()["out"].to_pylist() == [{"instance": 0, "total": 607}]
        with pytest.raises(
            EpochAborted, match=r"'totals', request Request\(user=13, item=0\): .* ValueError: thirteen"
        ):
            test.epoch(requests=[(13, 0)])


def test_invalid_partial_processes_are_refused_with_the_fix() -> None:
    stream = Pipeline("refused").read("rows", generator.source(PAIRS))

    class Keyed(PartialProcess):
        count = ValueState("count bigint")
        output = "count bigint"

        def process(self, rows: Any, ctx: Any) -> Any: ...

    class Elsewhere(KeyedProcess):
        held = ListState("n bigint", scope="partial")
        output = "n bigint"

        def process(self, key: Any, rows: Any, ctx: Any) -> Any: ...

    class Unmerged(Totals):
        answer = "total bigint"

    class Unanswered(Totals):
        def merge(self, request: Any, answers: Any, ctx: Any) -> Any: ...

    with pytest.raises(
        PipelineError, match=r"'keyed': state 'count' of Keyed has the scope 'keyed'; .* scope='partial'"
    ):
        stream.process_partial(Keyed)
    with pytest.raises(PipelineError, match=r"state 'held' of Elsewhere has the scope 'partial'; .*process_partial"):
        stream.key_by("item").process(Elsewhere)
    with pytest.raises(PipelineError, match=r"Totals defines process_global but has no requests. Pass the stream"):
        stream.process_partial(Totals)
    with pytest.raises(PipelineError, match=r"Alone must define process_global\(self, request, ctx\)"):
        stream.process_partial(Alone, requests=stream)
    with pytest.raises(PipelineError, match="Unmerged declares answer but does not define merge"):
        stream.process_partial(Unmerged, requests=stream)
    with pytest.raises(PipelineError, match="Unanswered defines merge but does not declare the answers: add answer"):
        stream.process_partial(Unanswered, requests=stream)
    with pytest.raises(PipelineError, match="requests must be a stream of this pipeline, not str"):
        stream.process_partial(Totals, requests="requests")  # type: ignore[arg-type]
