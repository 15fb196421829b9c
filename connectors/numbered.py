"""What sources of made-up rows have in common: row n is the same whenever it is read, and rows fall due at a rate."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from epochal.contracts.source import Backlog, Slice, SliceLimits, Source
from epochal.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class NumberedSource(Source):
    """Positions count rows: 0, 1, 2, .. up to ``bound``, if there is one.

    With a rate, rows fall due from the first ``plan`` of an attempt on. Without one, a slice has as many as the engine
    allows, else ``without_limit``. With ``punctuation`` every so many-th row ends a slice.
    """

    without_limit: ClassVar[int]
    """Rows of a slice when neither a rate nor the engine says how many."""
    endless: ClassVar[str]
    """What to say of a run that is to take all that is available, when there is no bound."""

    def __init__(
        self,
        rate: float | None = None,
        bound: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        punctuation: int | None = None,
    ) -> None:
        self._punctuation = punctuation
        self._rate = rate
        self._bound = bound
        self._clock = clock
        self._position = 0
        self._began: tuple[float, int] | None = None
        self._seen: int | None = None
        """So many rows were due when ``plan`` looked."""

    @abstractmethod
    def rows(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Rows ``start`` to ``end - 1``: the same ones each time, wherever the slice is cut."""

    @property
    def ended(self) -> bool:
        return self._bound is not None and self._position >= self._bound

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._position = int((checkpoint or {}).get("row", 0))
        for slice in slices:
            self.accept(slice)

    def checkpoint(self) -> dict[str, Any]:
        return {"row": self._position}

    def limit_to_available(self) -> None:
        """All rows up to the bound are there, whatever the rate."""
        if self._bound is None:
            raise OptionError(self.endless)
        self._rate = None

    @property
    def bounded(self) -> bool:
        return self._bound is not None

    def limit_to_bounds(self) -> None:
        """The bound is a number of rows, and the rate stays."""

    @property
    def punctuated(self) -> bool:
        return self._punctuation is not None

    def plan(self, limits: SliceLimits) -> Slice | None:
        if self.ended:
            return None
        if self._punctuation is not None:
            return self._up_to_punctuation(self._punctuation)
        end = self._due(limits)
        self._seen = None if self._rate is None else end
        if limits.max_records is not None:
            end = min(end, self._position + limits.max_records)
        if self._bound is not None:
            end = min(end, self._bound)
        if end <= self._position:
            return None
        return Slice(start={"row": self._position}, end={"row": end}, rows=end - self._position)

    def _up_to_punctuation(self, every: int) -> Slice | None:
        end = (self._position // every + 1) * every
        end = end if self._bound is None else min(end, self._bound)
        if self._rate is not None:
            self._seen = self._due(SliceLimits(None))
            if self._seen < end:
                return None
        return Slice(start={"row": self._position}, end={"row": end}, rows=end - self._position)

    def accept(self, slice: Slice) -> None:
        self._position = int(slice.end["row"])

    def backlog(self) -> Backlog:
        """Rows that are due, by the rate or, without one, up to the bound. Without either there is no telling."""
        there = self._seen if self._rate is not None else self._bound
        if there is None:
            return Backlog()
        there = there if self._bound is None else min(there, self._bound)
        return Backlog(records=max(0, there - self._position))

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self.rows(spark, int(slice.start["row"]), int(slice.end["row"]))

    def acknowledge(self, slice: Slice) -> None:
        """Nothing to acknowledge."""

    def _due(self, limits: SliceLimits) -> int:
        if self._rate is None:
            return self._position + (limits.max_records or self.without_limit)
        if self._began is None:
            self._began = (self._clock(), self._position)
        since, first = self._began
        return first + int((self._clock() - since) * self._rate)
