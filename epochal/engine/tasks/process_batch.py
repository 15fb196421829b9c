"""T2 of ``process_batch``: the author's function once per subtask and epoch, Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from epochal.engine.tasks.batch_state import SubtaskBatchState
from epochal.engine.tasks.operator import Subtask
from epochal.engine.tasks.output import checked_table
from epochal.engine.tasks.read_only import read_only
from epochal.engine.tasks.reporting import author_error, author_traceback
from epochal.errors import EpochalError, InvalidInput
from epochal.pipeline.keyed import BatchFunction, Context
from epochal.pipeline.state import declared_states
from epochal.state.access import TableAccess


@dataclass(frozen=True)
class ProcessBatchWork:
    """``columns`` are the names of the columns that the function sees, in the author's order.

    The function is called in every epoch, also with no rows. Raises ``AuthorError`` for what it raises, ``SchemaError``
    and ``InvalidKey`` for what it gives that does not fit.
    """

    function: BatchFunction
    columns: tuple[str, ...]
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = pa.Table.from_batches(list(rows)).select(self.columns).combine_chunks()
        states = self._states(subtask)
        context = Context(subtask.epoch.epoch, subtask.operator, subtask.subtask)
        where = f"Operator {subtask.operator!r}"
        try:
            with read_only(self.function, where):
                result = self.function.process_batch(batch, states, context)
        except InvalidInput as error:
            raise type(error)(f"{where}: {error.message}\n{author_traceback(error)}") from error
        except EpochalError:
            raise
        except (Exception, SystemExit) as error:
            raise author_error(where, error) from error
        output = checked_table(subtask.operator, result, subtask.output)
        for state in states.values():
            changes = state.changes()
            if changes is not None:
                subtask.transaction.stage(state.table.id, changes)
        yield from output.to_batches()

    def _states(self, subtask: Subtask) -> dict[str, SubtaskBatchState]:
        tables = {table.id: table for table in subtask.tables}
        states = {}
        for name in declared_states(type(self.function)):
            table = tables[f"{subtask.operator}.{name}"]
            access = TableAccess(table, subtask.transaction.view(table.id), subtask.max_parallelism)
            states[name] = SubtaskBatchState(table, access, subtask.ownership)
        return states
