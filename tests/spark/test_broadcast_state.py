"""Broadcast state: rules that are the same in every subtask, written by control rows and read for every key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import BroadcastProcess, ListState, MapState, Pipeline, ValueState, read_state
from epochal.connectors import console, generator
from epochal.contracts.configuration import Configuration
from epochal.errors import EpochAborted, PipelineError
from epochal.pipeline.analysis import analyse
from epochal.pipeline.stream import Stream
from epochal.testing import Harness

PAYMENTS = {"user": "cast(id as string)", "kind": "cast(id as string)", "amount": "cast(id as double)"}
LIMITS = {"at": "id", "kind": "cast(id as string)", "amount": "cast(id as int)"}
"""Has columns with the names of payment columns, one of another type."""


class Alerts(BroadcastProcess):
    """Reports amounts above the limit of their kind. Counts alerts per user and stores every change of a limit."""

    limits = MapState(key="kind string", value="most int", scope="broadcast")
    changes = ListState("kind string, at bigint", scope="broadcast")
    latest = ValueState("at bigint", scope="broadcast")
    alerts = ValueState("count bigint")
    output = "subtask int, user string, kind string, count bigint, limits int, at bigint"
    order_by = "amount"

    def process_broadcast(self, row: Any, ctx: Any) -> Iterable[Any]:
        if row.amount < 0:
            self.limits.remove(row.kind)
        else:
            self.limits.put(row.kind, row.amount)
        self.changes.append(kind=row.kind, at=row.at)
        self.latest.set(row.at)
        yield ctx.subtask, "control", row.kind, None, len(self.limits.items()), row.at

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Any]:
        for row in rows:
            if row.amount > self.limits.get(row.kind, 1000):
                self.alerts.set((self.alerts.get() or 0) + 1)
                yield None, key.user, row.kind, self.alerts.get(), len(self.limits.items()), self.latest.get()


def build(process: type[BroadcastProcess] = Alerts, order_by: str | tuple[str, ...] = "at") -> Pipeline:
    pipeline = Pipeline("alerts")
    payments = pipeline.read("payments", generator.source(PAYMENTS))
    limits = pipeline.read("limits", generator.source(LIMITS))
    connected = payments.connect(limits, broadcast=True, order_by=order_by).key_by("user")
    connected.process(process, name="alerts").write("out", console.sink())
    return pipeline


def configuration(parallelism: int, backend: str = "heap") -> Configuration:
    return Configuration(parallelism=parallelism, max_parallelism=8, state_backend=backend, epoch_interval_seconds=0)


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.mark.parametrize("backend", ["heap", pytest.param("lmdb", marks=pytest.mark.long)])
@pytest.mark.alternating(3)
def test_every_key_reads_broadcast_state_also_after_a_rescale(spark: SparkSession, backend: str) -> None:
    with Harness(build(), spark, configuration(2, backend)) as test:
        users = [f"u{number}" for number in range(6)]
        first = test.epoch(
            limits=[(2, "gin", 20), (1, "gin", 99), (3, "tea", 5)],
            payments=[*((user, "gin", 50.0) for user in users), ("u1", "tea", 4.0)],
        )["out"]
        control = [row for row in rows(first) if row[1] == "control"]
        alerts = [row for row in rows(first) if row[1] != "control"]
        assert [(row[0], *row[2:]) for row in sorted(control, key=lambda row: row[5])] == [
            (0, "gin", None, 1, 1),
            (0, "gin", None, 1, 2),
            (0, "tea", None, 2, 3),
        ], "in the order of their time, and once although every subtask processes them"
        assert alerts == [(None, user, "gin", 1, 2, 3) for user in users], "control rows come before data rows"
        assert rows(test.state("alerts.limits")) == [(0, "gin", 20), (0, "tea", 5)]
        assert rows(test.state("alerts.changes")) == [(0, 0, "gin", 1), (0, 1, "gin", 2), (0, 2, "tea", 3)]
        assert rows(test.state("alerts.latest")) == [(0, 3)]
        test.restart(parallelism=1)  # tests/spark/operators has a rescale to more subtasks
        later = test.epoch(payments=[(user, "gin", 50.0) for user in users])["out"]
        assert rows(later) == [(None, user, "gin", 2, 2, 3) for user in users]
        removed = test.epoch(limits=[(4, "gin", -1)], payments=[("u1", "gin", 50.0)])["out"]
        assert rows(removed) == [(0, "control", "gin", None, 1, 4)]
        assert rows(test.state("alerts.limits")) == [(0, "tea", 5)]
        for table in test.state_tables:
            read = read_state(spark, test.store, table.id)
            assert sorted(map(tuple, read.collect()), key=repr) == rows(test.state(table.id)), "equals read_state"


class Differs(Alerts):
    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        self.limits.put(row.kind, ctx.subtask)


class WritesRules(Alerts):
    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        self.limits.put("gin", 1)


class ReadsKeyed(Alerts):
    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        self.alerts.get()


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (Differs, r"'alerts': process_broadcast\(\) wrote different broadcast state on subtask 1 and on subtask 0"),
        (WritesRules, r"key \(user='u1'\): .*RuntimeError: State 'alerts.limits' is .*only in process_broadcast"),
        (ReadsKeyed, r"control row Row\(at=1, .*State 'alerts' of ReadsKeyed is only available while a key"),
    ],
)
def test_differing_broadcast_state_aborts_the_epoch(
    spark: SparkSession, process: type[BroadcastProcess], message: str
) -> None:
    with Harness(build(process), spark, configuration(2)) as test, pytest.raises(EpochAborted, match=message):
        test.epoch(limits=[(1, "gin", 20)], payments=[("u1", "gin", 50.0)])


def test_invalid_broadcast_connections_are_refused(spark: SparkSession) -> None:
    pipeline = Pipeline("refused")
    payments = pipeline.read("payments", generator.source(PAYMENTS))
    limits = pipeline.read("limits", generator.source(LIMITS))

    class NoControl(BroadcastProcess):
        output = "user string"

        def process(self, key: Any, rows: Any, ctx: Any) -> Any: ...

    class OperatorState(Alerts):
        waiting = ListState("at bigint", scope="operator")

    with pytest.raises(PipelineError, match="requires order_by"):
        payments.connect(limits, broadcast=True)
    with pytest.raises(PipelineError, match="add broadcast=True"):
        payments.connect(limits, broadcast=False, order_by="at")
    with pytest.raises(PipelineError, match="the stream itself"):
        payments.connect(payments, broadcast=True, order_by="user")
    connected = payments.connect(limits, broadcast=True, order_by="at").key_by("user")
    with pytest.raises(PipelineError, match=r"must define process_broadcast\(self, row, ctx\)"):
        connected.process(NoControl)
    with pytest.raises(PipelineError, match="'waiting' of OperatorState has the scope 'operator'"):
        connected.process(OperatorState)
    with pytest.raises(PipelineError, match=r"state 'limits' of Alerts has the scope 'broadcast'; .*connect\(control"):
        payments.key_by("user").process(Alerts)

    def problem(order_by: str = "at", change: Any = lambda payments, limits: (payments, limits)) -> str:
        pipeline = Pipeline("refused")
        streams: tuple[Stream, Stream] = change(
            pipeline.read("payments", generator.source(PAYMENTS)), pipeline.read("limits", generator.source(LIMITS))
        )
        connected = streams[0].connect(streams[1], broadcast=True, order_by=order_by).key_by("user")
        connected.process(Alerts).write("out", console.sink())
        with pytest.raises(PipelineError) as refused:
            analyse(pipeline.graph(), spark)
        return refused.value.message

    assert "'alerts', order_by: there is no column 'when'" in problem("when")
    assert "rand() returns another value" in problem(
        change=lambda payments, limits: (payments, limits.with_columns(x="rand()"))
    )
    assert "'_kg', a reserved name" in problem(change=lambda payments, limits: (payments, limits.with_columns(_kg="1")))
