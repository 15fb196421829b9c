"""T2 of ``process_batch``: Arrow in, Arrow out, bulk state whose reads include the task's own writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from epochal.contracts.catalog import Failure
from epochal.declarations.author_classes import Context
from epochal.declarations.keyed import BatchFunction, BatchState
from epochal.declarations.state import ValueState, declared_states
from epochal.engine.failures import failure_of
from epochal.errors import AuthorError, EpochalError, InvalidKey, SchemaError
from epochal.operators.process.batch_work import ProcessBatchWork
from epochal.state.table import Column

KEY = (Column(name="route", type="string"),)
ROW = pa.schema([("route", pa.string()), ("delay", pa.int64())])
OUTPUT = pa.schema([("route", pa.string()), ("total", pa.int64())])
States = Mapping[str, BatchState]


class Running(BatchFunction):
    totals = ValueState("total bigint")
    output = "route string, total bigint"

    def process_batch(self, batch: pa.Table, states: States, ctx: Context) -> pa.Table:
        slice = batch.group_by("route").aggregate([("delay", "sum")])
        _, old = states["totals"].get(slice.select(["route"]))
        total = pc.add(pc.fill_null(old["total"], 0), slice["delay_sum"])
        rows = pa.table({"total": total, "route": slice["route"]})
        states["totals"].put(rows)
        return rows


@pytest.fixture
def operator(make_operator: Any) -> Callable[..., Any]:
    def make(function: BatchFunction, **more: Any) -> Any:
        tables = tuple(state.table("operator", KEY) for state in declared_states(type(function)).values())
        work = ProcessBatchWork(function, tuple(ROW.names))
        return make_operator(work, KEY, ROW, OUTPUT, tables=tables, **more)

    return make


def rows(**delays: list[int]) -> list[dict[str, Any]]:
    return [{"route": route, "delay": delay} for route, of_route in delays.items() for delay in of_route]


def totals(output: list[dict[str, Any]]) -> dict[str | None, int]:
    return {row["route"]: row["total"] for row in output}


def routes(*names: str | None) -> pa.Table:
    return pa.table({"route": pa.array(names, pa.string())})


@pytest.mark.parametrize("kind", ["heap", "lmdb"])
def test_state_is_kept_between_epochs(operator: Any, kind: str) -> None:
    running = operator(Running(), kind=kind)
    assert totals(running.run(rows(a=[1, 2], b=[3], c=[4]))) == {"a": 3, "b": 3, "c": 4}
    no_route = [{"route": None, "delay": 5}, {"route": None, "delay": 6}]
    assert totals(running.run(rows(a=[10], d=[1]) + no_route)) == {"a": 13, "d": 1, None: 11}
    assert running.run([]) == []
    assert totals(running.run(no_route)) == {None: 22}
    assert running.state(running.tables[0]) == {("a",): (13,), ("b",): (3,), ("c",): (4,), ("d",): (1,), (None,): (22,)}


class Own(BatchFunction):
    """Reads after each of its own writes."""

    totals = ValueState("total bigint")
    output = "route string, total bigint"

    def process_batch(self, batch: pa.Table, states: States, ctx: Context) -> pa.Table | None:
        if not batch.num_rows:
            return None
        state, keys = states["totals"], batch.select(["route"])
        number = np.arange(batch.num_rows)
        found, before = state.get(keys)
        assert found.tolist() == [ctx.epoch > 1] * batch.num_rows
        assert before["total"].to_pylist() == [100 if ctx.epoch > 1 else None] * batch.num_rows
        state.put(batch.select(["route"]).append_column("total", pa.array(number)))
        found, values = state.get(keys.take(pa.array(number[::-1])))
        assert found.all() and values["total"].to_pylist() == number[::-1].tolist()
        state.delete(keys.slice(0, 1))
        found, values = state.get(keys)
        assert found.tolist() == [False] + [True] * (batch.num_rows - 1)
        assert values["total"].to_pylist() == [None, *number[1:].tolist()]
        state.put(keys.append_column("total", pa.array(np.full(batch.num_rows, 100))))
        state.delete(keys.filter(pc.starts_with(keys["route"], "deleted")))
        return pa.table({"route": keys["route"], "total": pa.array(number)})


def test_reads_return_own_writes_and_the_last_write_is_stored(operator: Any) -> None:
    own = operator(Own())
    no_route = [{"route": None, "delay": 1}]
    assert len(own.run(rows(a=[1], b=[1], c=[1], d=[1], e=[1], deleted=[1]) + no_route)) == 7
    assert own.state(own.tables[0]) == {(name,): (100,) for name in [*"abcde", None]}
    own.run(rows(a=[1], b=[1], c=[1]) + no_route)
    assert own.state(own.tables[0]) == {(name,): (100,) for name in [*"abcde", None]}


def test_a_key_put_and_deleted_in_one_epoch_writes_nothing(operator: Any) -> None:
    own = operator(Own())
    _, handles = own.attempt(rows(deleted=[1]))
    assert sum(handle.rows for handle in handles) == 0


def failure(make: Any, body: Callable[[pa.Table, BatchState], Any], error: type[EpochalError]) -> Failure:
    class Wrong(BatchFunction):
        totals = ValueState("total bigint")
        output = "route string, total bigint"

        def process_batch(self, batch: pa.Table, states: States, ctx: Context) -> Any:
            return body(batch, states["totals"]) if batch.num_rows else None

    with pytest.raises(error) as raised:
        make(Wrong()).attempt(rows(a=[1]))
    found = failure_of(raised.value)
    assert "operator" in found.message
    return found


WRONG: dict[str, tuple[Callable[[pa.Table, BatchState], Any], type[EpochalError], str]] = {
    "not a table": (lambda batch, _: [1], SchemaError, "must return a pyarrow.Table; it returned [1]"),
    "columns": (lambda batch, _: batch, SchemaError, "returned the columns route, delay"),
    "type": (
        lambda batch, _: pa.table({"route": ["a"], "total": ["x"]}),
        SchemaError,
        "returned column 'total' as string",
    ),
    "put columns": (lambda batch, state: state.put(batch), SchemaError, "put takes a pyarrow.Table with the columns"),
    "put no table": (lambda batch, state: state.put(3), SchemaError, "it received a int"),
    "get columns": (lambda batch, state: state.get(batch), SchemaError, "get takes a pyarrow.Table"),
    "key twice": (lambda batch, state: state.delete(routes("a", "a")), InvalidKey, "received a key twice"),
    "null twice": (lambda batch, state: state.delete(routes(None, None)), InvalidKey, "received a key twice"),
    "another's key": (
        lambda batch, state: state.put(
            pa.table({"route": [f"r{number}" for number in range(20)], "total": list(range(20))})
        ),
        InvalidKey,
        "belongs to another subtask",
    ),
    "exception": (lambda batch, _: 1 // 0, AuthorError, "ZeroDivisionError"),
    "exit": (lambda batch, _: exit(3), AuthorError, "SystemExit: 3"),
}


@pytest.mark.parametrize(("body", "error", "complaint"), WRONG.values(), ids=WRONG.keys())
def test_invalid_arguments_and_results_are_refused(
    operator: Any, body: Callable[[pa.Table, BatchState], Any], error: type[EpochalError], complaint: str
) -> None:
    found = failure(operator, body, error)
    assert complaint in found.message
    assert found.type == error.slug
