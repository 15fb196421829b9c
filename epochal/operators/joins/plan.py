"""Planning shared by all joins of two streams: the columns of both, and the state tables of their rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.contracts.stream_kind import Accepted, Kind, StreamKind
from epochal.declarations.names import closest, listed
from epochal.declarations.schemas import check_input_names, key_columns
from epochal.errors import PipelineError
from epochal.operators.joins.work import COUNT, OWN_COLUMNS, ROW, TIME
from epochal.state.table import Column, StateKind, StateTable
from epochal.state.type_names import type_name
from epochal.state.types import check_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CARRIED = re.compile(r"_\d+_.*")
_SIDES = ("left", "right")


@dataclass(frozen=True)
class JoinedColumns:
    """The columns of two streams: those of the ``key``, and the ``others`` of each side, in order."""

    operator: str
    key: tuple[Column, ...]
    others: tuple[tuple[Column, ...], tuple[Column, ...]]

    def beside_key(self, side: int) -> tuple[Column, ...]:
        return self.others[side]

    def only(self, side: int, *names: str) -> tuple[Column, ...]:
        """The columns of a side with these names, without those of the key."""
        chosen = {name.casefold() for name in names}
        return tuple(column for column in self.others[side] if column.name.casefold() in chosen)

    def check_times(self, times: Sequence[str]) -> None:
        """Raises ``PipelineError`` if the event time of a side is not among its columns outside the key."""
        for side, (name, time) in enumerate(zip(_SIDES, times, strict=True)):
            if self.only(side, time):
                continue
            if time.casefold() in {column.name.casefold() for column in self.key}:
                raise PipelineError(
                    f"Operator {self.operator!r}: {time!r}, the event time of the {name} stream, is in on=. Remove it: "
                    "within= defines the distance in time of two rows."
                )
            there = [column.name for column in self.others[side]]
            raise PipelineError(
                f"Operator {self.operator!r}: the {name} stream no longer has the column {time!r}, its event time."
                f"{closest(time, there)} Keep it, or call with_watermark(..) again."
            )

    def check_clash(self, but: Sequence[str] = ()) -> None:
        """Raises ``PipelineError`` if both sides have a column with the same name outside the key.

        ``but``: columns with equal values on both sides, which are allowed if their spelling is the same.
        """
        of_left = {column.name.casefold(): column.name for column in self.others[0]}
        same = {name.casefold() for name in but}
        clashing = [
            column.name
            for column in self.others[1]
            if (name := column.name.casefold()) in of_left and not (name in same and column.name == of_left[name])
        ]
        if clashing:
            raise PipelineError(
                f"Operator {self.operator!r}: both streams have {listed(map(repr, clashing))}; the output cannot have "
                f'both. Rename or drop it in one stream: select(.., "{clashing[0]} AS right_{clashing[0]}"); rename an '
                "event time before with_watermark(..)."
            )


def joined_columns(operator: str, on: tuple[str, ...], frames: Sequence[DataFrame], named_by: int = 0) -> JoinedColumns:
    """The columns of both sides; those of the key have the names of the side ``named_by``.

    Raises ``PipelineError`` or ``SchemaError`` with operator, column and fix.
    """
    keys, others = [], []
    for name, frame in zip(_SIDES, frames, strict=True):
        key = key_columns(operator, on, frame.schema)
        in_key = {column.name.casefold() for column in key}
        rest = []
        for field in frame.schema:
            _check_name(operator, field.name)
            if field.name.casefold() not in in_key:
                check_column(f"{operator}.{name}", field.name, type_name(field.dataType), key=False)
                rest.append(Column(name=field.name, type=type_name(field.dataType)))
        check_input_names(operator, frame.schema)
        keys.append(key)
        others.append(tuple(rest))
    for left, right in zip(*keys, strict=True):
        if left.type != right.type:
            raise PipelineError(
                f"Operator {operator!r}: {left.name!r} is {left.type} in the left stream and {right.type} in the "
                f'right stream. Cast them to one type before the join: with_columns({left.name}="CAST({left.name} AS '
                '..)").'
            )
    spelled = {name.casefold(): name for name in frames[named_by].columns}
    named = tuple(column.model_copy(update={"name": spelled[column.name.casefold()]}) for column in keys[0])
    return JoinedColumns(operator, named, (others[0], others[1]))


def rows_table(
    operator: str,
    id: str,
    key: tuple[Column, ...],
    kept: tuple[Column, ...],
    flags: tuple[Column, ...],
    queryable: bool,
) -> StateTable:
    """A multiset of rows by key and time, with the count of each. Equal rows have equal digests."""
    return StateTable(
        id=id,
        operator=operator,
        kind=StateKind.MAP,
        key=key,
        sub_key=(Column(name=TIME, type="timestamp"), Column(name=ROW, type="binary")),
        value=(*kept, Column(name=COUNT, type="bigint"), *flags),
        queryable=queryable,
    )


def _check_name(operator: str, name: str) -> None:
    if name.casefold() in OWN_COLUMNS or _CARRIED.fullmatch(name):
        raise PipelineError(
            f"Operator {operator!r}: its input has a column {name!r}, a name that is reserved in joins. Rename it."
        )


def _fix(stream: StreamKind) -> str:
    return (
        "A joined row cannot be retracted: a new value of its key would not replace it. Join append streams, such as "
        "the output of windows, or keep the newest value of each key in the state of process()."
    )


ROWS_THAT_STAY = Accepted(frozenset({Kind.APPEND}), _fix)
"""The inputs of joins: joins cannot retract their output."""
