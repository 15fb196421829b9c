"""An event-time operator that holds a row until ``fire`` is ``hold`` past its time, then outputs it unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.contracts.conditions import BEGINNING
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input
from epochal.pipeline.stream import Stream
from epochal.state.access import TableAccess
from epochal.state.expiry import Expiry
from epochal.state.keygroups import groups_of, key_groups
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.watermarks import END, behind
from epochal.tasks.operator import Subtask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = (Column(name="id", type="bigint"),)
OUTPUT = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def delayed(stream: Stream, name: str, hold: int = 0) -> Stream:
    """Delay rows of ``id`` (bigint, unique) and ``ts`` (timestamp, their event time). ``hold``: microseconds."""
    assert stream.event_time == "ts"
    return stream._operator(DelayingOperator(name, hold))


@dataclass(frozen=True)
class DelayingOperator(Operator):
    kind: ClassVar[str] = "delayed"
    name: str
    behind: int

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, ("id",), event_time="ts"),)

    @property
    def hold(self) -> int:
        return self.behind

    @property
    def event_time_of_output(self) -> str | None:
        return "ts"

    def late_before(self, input: int, late: int) -> int | None:
        return late

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        table = state_table(self.name, self.behind)
        return OperatorPlan(self.name, self.inputs, KEY, (table,), DelayingWork(table, self.behind), OUTPUT)

    def details(self) -> dict[str, Any]:
        return {}


def state_table(name: str, hold: int) -> StateTable:
    return StateTable(
        id=name,
        operator=name,
        kind=StateKind.VALUE,
        key=KEY,
        time=Column(name="ts", type="timestamp"),
        value=(Column(name="one", type="int"),),
        expires=Expiry(clock="event", column="ts", after=hold),
    )


@dataclass(frozen=True)
class DelayingWork:
    table: StateTable
    hold: int
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        watermarks, ownership = subtask.watermarks, subtask.ownership
        view = TableAccess(self.table, subtask.transaction.view(self.table.id), ownership.max_parallelism)
        owned = list(groups_of(ownership.subtask, ownership.parallelism, ownership.max_parallelism))
        arrived = [(row["id"], row["ts"]) for batch in rows for row in batch.select(["id", "ts"]).to_pylist()]
        new = pa.table({"id": [id for id, _ in arrived], "ts": [ts for _, ts in arrived]}, OUTPUT)
        times = new["ts"].cast(pa.int64())
        assert not len(new) or pa.compute.min(times).as_py() >= watermarks.late, (
            "the engine removes late rows before tasks"
        )
        closes = behind(watermarks.fire, self.hold)
        for due in view.due(owned, BEGINNING, closes + 1):
            yield from due.select(OUTPUT.names).cast(OUTPUT).to_batches()
        yield from new.filter(pa.compute.less_equal(times, closes)).to_batches()
        held = new.filter(pa.compute.greater(times, closes))
        if len(held):
            columns = {
                "_kg": key_groups(held.select(["id"]), self.table.owner_schema, ownership.max_parallelism),
                "_op": ["put"] * len(held),
                "ts": held["ts"],
                "id": held["id"],
                "one": [1] * len(held),
            }
            subtask.transaction.stage(self.table.id, pa.table(columns, self.table.delta_schema))
        pending = [time.as_py() for time in held["ts"].cast(pa.int64())]
        pending += [time for due in view.due(owned, closes + 1, END) for time in due["ts"].cast(pa.int64()).to_pylist()]
        if pending:
            subtask.due.add(event=min(pending) + self.hold)
