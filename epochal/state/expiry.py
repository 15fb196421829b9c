"""Expiry without deletes: rows of a state table expire by their time, without a write.

A row is expired in a snapshot whose clock has reached the row's time plus a fixed duration. The content of a snapshot
is therefore independent of the time and the process of the read: readers use the clock recorded in the snapshot's
manifest. Caches, and runs below which no older one lies, omit rows that are expired at their snapshot. Clocks never
decrease along a lineage, so no later snapshot needs these rows.
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
"""Types of time columns; all of them hold microseconds since the Unix epoch."""

Refresh = Literal["write", "read_and_write"]


@dataclass(frozen=True)
class StateClock:
    """An operator's clock at a snapshot, in microseconds: its watermark *fire*, and the epoch time."""

    event: int
    processing: int


class Expiry(BaseModel):
    """Expiry of a table's rows: a row is expired in a snapshot whose ``clock`` has reached ``column + after``
    (microseconds).

    ``column``: the table's ``time``, or a value column; a row with null in it never expires. ``clock``: ``event``, the
    operator's watermark *fire*; ``processing``, the epoch time. ``floor``: rows with times up to this one had expired
    when ``after`` was changed, and stay expired. ``refresh``: the accesses by an author's function that refresh a row,
    writes only or also reads. ``deleted``: the boolean value column that marks a key as deleted; rows of other keys
    have no time and never expire.
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
        """The greatest value of ``column`` at which rows are expired; ``None``: no row is expired."""
        if clock is None:
            return None
        at = behind(clock.event if self.clock == "event" else clock.processing, self.after)
        at = at if self.floor is None else max(at, self.floor)
        return None if at == BEGINNING else at


def microseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column of one of :data:`TIME_TYPES` as int64."""
    return column if pa.types.is_int64(column.type) else column.cast(pa.int64())


def gone(column: pa.Array | pa.ChunkedArray, horizon: int) -> Mask:
    """A mask of the expired rows, by their expiry column."""
    mask: Mask = np.asarray(pc.fill_null(pc.less_equal(microseconds(column), horizon), False))
    return mask
