"""An operator with timers in processing time at the level of the operator contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from epochal.contracts.conditions import as_datetime, microseconds
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input
from epochal.state.key_codec import KeyCodec
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable
from epochal.tasks.operator import Subtask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = (Column(name="name", type="string"),)
ROWS = pa.schema([("name", pa.string()), ("n", pa.int64())])
OUTPUT = pa.schema([("name", pa.string())])
REMINDERS = StateTable(
    id="reminders.at", operator="reminders", kind=StateKind.VALUE, key=KEY, value=(Column(name="at", type="timestamp"),)
)


@dataclass(frozen=True)
class RemindersOperator(Operator):
    """An operator over rows with the columns of ``ROWS``."""

    kind: ClassVar[str] = "reminders"
    name: str = "reminders"

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, ("name",)),)

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        return OperatorPlan(self.name, self.inputs, KEY, (REMINDERS,), RemindersWork(), OUTPUT)

    def details(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class RemindersWork:
    """A row sets a reminder after ``n`` seconds. When the reminder is due, its key is output, even without input
    rows."""

    needs_order = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        now, view = as_datetime(subtask.epoch_time), subtask.transaction.view(REMINDERS.id)
        assert now is not None
        waiting: dict[str, datetime] = {}
        for group in range(subtask.subtask, subtask.max_parallelism, subtask.ownership.parallelism):
            keys, values = view.range(group)
            names = KeyCodec(REMINDERS.key_schema).decode(keys)["name"].to_pylist()
            waiting |= dict(zip(names, values["at"].to_pylist(), strict=True))
        fired = {name for name, at in waiting.items() if at <= now}
        added = {row["name"]: now + timedelta(seconds=row["n"]) for batch in rows for row in batch.to_pylist()}
        for at in {name: at for name, at in (waiting | added).items() if name in added or name not in fired}.values():
            subtask.due.add(processing=microseconds(at))
        if changed := [*added, *(fired - added.keys())]:
            subtask.transaction.stage(REMINDERS.id, self._changes(changed, added, subtask.max_parallelism))
        yield pa.RecordBatch.from_pydict({"name": sorted(fired)}, subtask.output)

    def _changes(self, names: Sequence[str], added: dict[str, datetime], max_parallelism: int) -> pa.Table:
        keys = pa.table({"name": names}, REMINDERS.key_schema)
        columns = {
            "_kg": key_groups(keys, REMINDERS.key_schema, max_parallelism),
            "_op": ["put" if name in added else "delete" for name in names],
            "name": names,
            "at": [added.get(name) for name in names],
        }
        return pa.table(columns, REMINDERS.delta_schema)
