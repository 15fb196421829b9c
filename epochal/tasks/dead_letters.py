"""Rows that a sink rejects, written to another sink in the same epoch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from epochal.contracts.backend import SinkBackend, SinkTransaction
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import RowRejected
from epochal.faults import declare
from epochal.state.json_form import to_json
from epochal.state.types import shown_type
from epochal.tasks.steps import StepClock

DEAD_LETTER: Final = pa.schema(
    [
        pa.field("sink", pa.string()),
        pa.field("rejected_in_epoch", pa.int64()),
        pa.field("subtask", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("rejected_row", pa.string()),
    ]
)
"""``sink``, ``rejected_in_epoch`` and ``subtask``: the origin. ``rejected_row``: a JSON object, with values as look-ups
return them (:mod:`epochal.state.json_form`); bytes that are not UTF-8 are escaped (``\\xff``)."""


PRE_COMMITTED = declare("T3.dead-letters.pre-committed", "dead letters are pre-committed, accepted rows are not")


@dataclass(frozen=True)
class DeadLetters:
    """The sink of the rows that another sink rejects. ``most``: their maximum number in an epoch."""

    sink: str
    backend: SinkBackend
    most: int


class SortedOut(SinkTransaction):
    """The transaction of a sink and one of its dead letters: each row goes to one of them.

    The sink's own checks decide. A batch with a rejected row is halved until the row is found, so that the cost grows
    with the number of rejected rows; accepted rows keep their order.
    """

    def __init__(self, accepting: SinkTransaction, dead_letters: DeadLetters, task: TaskScope) -> None:
        self._accepting = accepting
        self._dead_letters = dead_letters
        self._task = task
        self._transaction = dead_letters.backend.start(TaskScope(task.epoch, dead_letters.sink, task.subtask))
        self._rejected: list[tuple[str, str]] = []
        self._handle: Handle | None = None

    def answer(self) -> dict[str, bytes]:
        """The answer with the handle of the dead letters, by their sink. Called after :meth:`pre_commit`."""
        assert self._handle is not None
        reason = self._rejected[0][0] if self._rejected else None
        return {self._dead_letters.sink: StepClock().answer(self._handle, reason=reason)}

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises ``RowRejected`` if more rows are rejected than the dead letters take."""
        try:
            self._accepting.write(batch)
        except RowRejected as rejected:
            if batch.num_rows > 1:
                middle = batch.num_rows // 2
                self.write(batch.slice(0, middle))
                self.write(batch.slice(middle))
            else:
                self._reject(batch, rejected.message)

    def pre_commit(self) -> Handle:
        if self._rejected:
            self._transaction.write(self._letters())
        self._handle = self._transaction.pre_commit()
        PRE_COMMITTED.hit(self._task.epoch.epoch)
        return self._accepting.pre_commit()

    def discard(self) -> None:
        self._accepting.discard()
        if self._handle is None:  # the sweep finds those of a complete transaction
            self._transaction.discard()

    def _reject(self, row: pa.RecordBatch, reason: str) -> None:
        self._rejected.append((reason, row_as_json(row)))
        if len(self._rejected) > self._dead_letters.most:
            raise too_many(self._task.owner, len(self._rejected), self._dead_letters.most, reason)

    def _letters(self) -> pa.RecordBatch:
        reasons, rows = zip(*self._rejected, strict=True)
        columns = {
            "sink": [self._task.owner] * len(rows),
            "rejected_in_epoch": [self._task.epoch.epoch] * len(rows),
            "subtask": [self._task.subtask] * len(rows),
            "reason": list(reasons),
            "rejected_row": list(rows),
        }
        return pa.RecordBatch.from_pydict(columns, schema=DEAD_LETTER)


def too_many(sink: str, rows: int, most: int, reason: str | None) -> RowRejected:
    """The error of an epoch in which a sink rejects more rows than ``most``."""
    example = "" if reason is None else f" One of the reasons: {reason}"
    return RowRejected(
        f"Sink {sink!r} rejects {rows:,} rows or more of this epoch, and max_rejects is {most:,}. Correct the rows in "
        f"the pipeline, or raise max_rejects.{example}"
    )


def row_as_json(row: pa.RecordBatch) -> str:
    """A batch of one row as a JSON object."""
    fields = zip(row.schema, row.columns, strict=True)
    return json.dumps({field.name: _json_value(column, field.type) for field, column in fields}, ensure_ascii=False)


def _json_value(column: pa.Array, type: pa.DataType) -> Any:
    try:
        return to_json(column[0].as_py(), shown_type(type))
    except (UnicodeDecodeError, OverflowError, ValueError):  # other bytes, or a date that Python's types do not reach
        value = column.cast(_readable(type, pa.binary()))[0].as_py()
        return to_json(_with_escapes(value, type), shown_type(_readable(type, pa.string())))


def _readable(type: pa.DataType, text: pa.DataType) -> pa.DataType:
    """The type with ``text`` instead of text, and with text instead of dates and times."""
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return text
    if pa.types.is_date(type) or pa.types.is_timestamp(type):
        return pa.string()
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_readable(field.type, text)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_readable(type.key_type, text), _readable(type.item_type, text))
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(type.value_field.with_type(_readable(type.value_type, text)))
    return type


def _with_escapes(value: Any, type: pa.DataType) -> Any:
    """The value with text where ``type`` has text; bytes that are not UTF-8 are escaped."""
    if value is None:
        return None
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return value.decode("utf-8", "backslashreplace")
    if pa.types.is_struct(type):
        return {field.name: _with_escapes(value[field.name], field.type) for field in type}
    if pa.types.is_map(type):
        return [(_with_escapes(key, type.key_type), _with_escapes(item, type.item_type)) for key, item in value]
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [_with_escapes(each, type.value_type) for each in value]
    return value
