"""``process`` with a control stream: every subtask processes all control rows, then the rows of its keys.

Control rows write broadcast state, which is equal on every subtask: each subtask computes it, subtask 0 stores it, and
E3 compares the digests of it in all handles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from epochal.declarations.keyed import BroadcastProcess, broadcast_states
from epochal.declarations.schemas import check_input_names, key_columns
from epochal.declarations.sides import declared_sides
from epochal.declarations.state import declared_states
from epochal.errors import PipelineError
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.declared import check_order, declared_output, declared_tables, growing_states, side_outputs
from epochal.operators.distribution import Distribution, Input, Subtasks, in_every_column, sorted_by_subtask
from epochal.operators.process.broadcast_work import CONTROL, DATA, ProcessBroadcastWork
from epochal.state.type_names import quoted
from epochal.tasks.subtask_rows import INPUT, InputColumns, carried_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CARRIED = re.compile(r"_\d+_.*")


@dataclass(frozen=True)
class ProcessBroadcastOperator(Operator):
    """An author's :class:`~epochal.declarations.keyed.BroadcastProcess`.

    ``control_order``: the columns that control rows are sorted by.
    """

    kind: ClassVar[str] = "process_broadcast"
    name: str
    keys: tuple[str, ...]
    control_order: tuple[str, ...]
    process: type[BroadcastProcess]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (
            Input("rows", Distribution.BY_KEY, self.keys, order_by=self.process.order_columns()),
            Input("control", Distribution.TO_ALL, order_by=self.control_order),
        )

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(declared_sides(self.process))

    def plan(self, frames: Sequence[DataFrame]) -> OperatorPlan:
        data, control = frames
        key = key_columns(self.name, self.keys, data.schema)
        check_input_names(self.name, control.schema)
        for column in key:
            if _CARRIED.fullmatch(column.name):
                raise PipelineError(
                    f"Operator {self.name!r}: a key column of connected streams cannot be named {column.name!r}, a "
                    "name that is reserved for columns of inputs. Rename it."
                )
        tables = declared_tables(self.name, self.process, key, data)
        declared_tables(self.name, self.process, key, control)
        output = declared_output(self.name, self.process.output)
        names = tuple(column.name for column in key)
        work = ProcessBroadcastWork(
            self.process,
            InputColumns.of(DATA, data.columns, self.keys, names),
            InputColumns.of(CONTROL, control.columns),
        )
        sides = side_outputs(self.name, self.process)
        return ProcessBroadcastPlan(self.name, self.inputs, key, tables, work, output, sides=sides)

    @property
    def author_code(self) -> tuple[Any, ...]:
        return (self.process,)

    def details(self) -> dict[str, Any]:
        return {
            "keys": list(self.keys),
            "class": self.process.__name__,
            "states": list(declared_states(self.process)),
            "broadcast": list(broadcast_states(self.process)),
            "control order": list(self.control_order),
            **({"sides": list(self.sides)} if self.sides else {}),
        }

    @property
    def grows(self) -> str | None:
        return growing_states(self.process, "with ttl='7 days'")

    def check(self, frames: Sequence[DataFrame]) -> None:
        check_order(self.name, self.process.order_columns(), frames[DATA])
        check_order(self.name, self.control_order, frames[CONTROL])


@dataclass(frozen=True)
class ProcessBroadcastPlan(OperatorPlan):
    """Sorts control rows first, then rows by key, and the rows of a key by ``order_by``."""

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        from pyspark.sql import functions as F

        data, control = self.inputs
        keyed = {name.casefold(): column.name for name, column in zip(data.keys, self.key, strict=True)}
        order = [keyed.get(name.casefold(), carried_name(DATA, name)) for name in (*data.keys, *data.order_by)]
        rows = super().distributed(frames, subtasks)
        return sorted_by_subtask(
            rows,
            F.col(INPUT).desc(),  # control rows first
            *map(quoted, order),
            *in_every_column(frames[CONTROL], control.order_by, lambda name: carried_name(CONTROL, name)),
        )
