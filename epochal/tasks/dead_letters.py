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
from epochal.state.json_form import to_json
from epochal.state.types import shown_type
from epochal.tasks.steps import StepClock
from epochal.tasks.values import python_values

DEAD_LETTER: Final = pa.schema(
    [
        pa.field("sink", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("subtask", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("row", pa.string()),
    ]
)
"""``sink``, ``epoch`` and ``subtask``: the origin of the row. ``row``: a JSON object, with values as look-ups return them
(:mod:`epochal.state.json_form`); bytes that are not UTF-8 are escaped (``\\xff``)."""


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
        return self._accepting.pre_commit()

    def discard(self) -> None:
        self._accepting.discard()
        if self._handle is None:  # the sweep finds those of a complete transaction
            self._transaction.discard()

    def _reject(self, row: pa.RecordBatch, reason: str) -> None:
        self._rejected.append((reason, _json(row)))
        if len(self._rejected) > self._dead_letters.most:
            raise too_many(self._task.owner, len(self._rejected), self._dead_letters.most, reason)

    def _letters(self) -> pa.RecordBatch:
        reasons, rows = zip(*self._rejected, strict=True)
        columns = {
            "sink": [self._task.owner] * len(rows),
            "epoch": [self._task.epoch.epoch] * len(rows),
            "subtask": [self._task.subtask] * len(rows),
            "reason": list(reasons),
            "row": list(rows),
        }
        return pa.RecordBatch.from_pydict(columns, schema=DEAD_LETTER)


def too_many(sink: str, rows: int, most: int, reason: str | None) -> RowRejected:
    """The error of an epoch in which a sink rejects more rows than ``most``."""
    example = "" if reason is None else f" One of the reasons: {reason}"
    return RowRejected(
        f"Sink {sink!r} rejects {rows:,} rows or more of this epoch, and max_rejects is {most:,}. Correct the rows in "
        f"the pipeline, or raise max_rejects.{example}"
    )


def _json(row: pa.RecordBatch) -> str:
    fields = zip(row.schema, row.columns, strict=True)
    return json.dumps({field.name: _json_value(column, field.type) for field, column in fields}, ensure_ascii=False)


def _json_value(column: pa.Array, type: pa.DataType) -> Any:
    try:
        return to_json(python_values(column)[0], shown_type(type))
    except UnicodeDecodeError:
        return to_json(_with_escapes(column.cast(_with_bytes(type))[0].as_py(), type), shown_type(type))
    except (OverflowError, ValueError):  # a date that Python's types do not reach
        return str(column.cast(pa.string())[0].as_py())


def _with_bytes(type: pa.DataType) -> pa.DataType:
    """The type with bytes instead of text."""
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return pa.binary()
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_with_bytes(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_with_bytes(type.key_type), _with_bytes(type.item_type))
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return pa.list_(type.value_field.with_type(_with_bytes(type.value_type)))
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
