"""Expiry without deletes: when rows of a state table are gone although nobody wrote so.

A row is gone from a snapshot whose clock has reached the row's time and a fixed length more. So what a snapshot shows
never depends on when, or by what, it is read: readers take the clock that the snapshot's manifest records. Caches, and
new bases, leave out what is gone at the snapshot that they are of; clocks never fall along a lineage, so nobody who
reads from there on can miss it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from epochal.contracts.conditions import BEGINNING
from epochal.state.column_bytes import Mask
from epochal.state.watermarks import behind

TIME_TYPES = frozenset({"timestamp", "timestamp_ntz", "bigint"})
"""Of columns with times: microseconds from the Unix epoch, whichever it is."""

Refresh = Literal["write", "read_and_write"]


@dataclass(frozen=True)
class StateClock:
    """What an operator's clock shows at a snapshot, in microseconds: its watermark *fire*, and the epoch time."""

    event: int
    processing: int


class Expiry(BaseModel):
    """A row is gone from a snapshot whose ``clock`` has reached ``column + after`` (microseconds).

    ``column``: the table's ``time``, or a value column; a row in which it is null never goes. ``clock``: ``event``, the
    operator's watermark *fire*; ``processing``, the epoch time. ``floor``: rows with times up to it were gone when
    ``after`` was changed, and stay gone. ``refresh``: whether an author's function lets a row live on by writing it
    alone, or by reading it, too. ``deleted``: the boolean value column that says that a key is deleted; rows of other
    keys have no time, and never go.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    clock: Literal["event", "processing"]
    column: str
    after: int = Field(ge=0)
    floor: int | None = None
    refresh: Refresh = "write"
    deleted: str | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_usual(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        usual = {"floor": None, "refresh": "write", "deleted": None}
        return {name: value for name, value in fields.items() if name not in usual or value != usual[name]}

    def horizon(self, clock: StateClock | None) -> int | None:
        """The last time of rows that are gone, of ``column``; ``None``: no row is."""
        if clock is None:
            return None
        at = behind(clock.event if self.clock == "event" else clock.processing, self.after)
        at = at if self.floor is None else max(at, self.floor)
        return None if at == BEGINNING else at


def microseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column of one of :data:`TIME_TYPES` as int64."""
    return column if pa.types.is_int64(column.type) else column.cast(pa.int64())


def gone(column: pa.Array | pa.ChunkedArray, horizon: int) -> Mask:
    """Which rows are, by their expiry's column."""
    mask: Mask = np.asarray(pc.fill_null(pc.less_equal(microseconds(column), horizon), False))
    return mask
