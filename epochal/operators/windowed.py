"""What operators over windows share, whatever they give of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from epochal.contracts.stream_kind import ALL_BUT_CHANGES, APPEND, Accepted, StreamKind, upsert
from epochal.declarations.expressions import Expression, column, sql, to_column
from epochal.declarations.windows import WINDOW_END, WINDOW_TIME, Windowing
from epochal.operators import panes
from epochal.operators.contract import Operator, OperatorPlan
from epochal.operators.distribution import Distribution, Input, Subtasks

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class WindowedOperator(Operator):
    """An operator over windows of the event time of its one input: what of it follows from the windows."""

    tells_rows_apart: ClassVar[tuple[str, ...]] = ()
    """The columns that tell the rows of a key and window apart, where there are several."""
    name: str
    keys: tuple[str, ...]
    event_time: str
    windowing: Windowing

    @property
    def takes(self) -> Accepted:
        """The kinds of stream that it may read."""
        return ALL_BUT_CHANGES

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (Input("rows", Distribution.BY_KEY, self.keys, self.takes, event_time=self.event_time),)

    @property
    def hold(self) -> int:
        return self.windowing.hold

    @property
    def event_time_of_output(self) -> str | None:
        return WINDOW_TIME if self.windowing.emit == "final" else None

    def late_before(self, input: int, late: int) -> int | None:
        return panes.late_before(self.windowing, late)

    def gives(self, streams: Sequence[StreamKind]) -> StreamKind:
        if self.windowing.emit == "final":
            return APPEND
        return upsert((*self.keys, *panes.window_key(self.windowing), *self.tells_rows_apart))

    def details(self) -> dict[str, Any]:
        return {"keys": list(self.keys), "event_time": self.event_time, **self.windowing.details()}


@dataclass(frozen=True)
class WindowedRowsPlan(OperatorPlan):
    """Rows come in any order: the task keeps them by their panes.

    ``columns``: those of a row that it gets, the key's as the key spells them; ``time``: what else it gets, by which
    rows lie in state.
    """

    columns: tuple[str, ...]
    time: Expression

    @cached_property
    def carried(self) -> list[SparkColumn]:
        """What the task gets of a row; made once, as every column costs calls into the JVM."""
        return [*(to_column(column(name).alias(name)) for name in self.columns), to_column(self.time)]

    def distributed(self, frames: Sequence[DataFrame], subtasks: Subtasks) -> DataFrame:
        return super().distributed([frames[0].select(*self.carried)], subtasks)


def window_time() -> SparkColumn:
    """The event time of a result, from its window's end."""
    return to_column(sql(f"{WINDOW_END} - INTERVAL '0.000001' SECOND").alias(WINDOW_TIME))
