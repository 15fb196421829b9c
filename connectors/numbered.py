"""Base class of generating sources: row n is the same in every read, and rows fall due at a rate."""

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
    """Source of numbered rows. A position is a row number: 0, 1, 2, .. up to ``bound``, if it is set.

    With a rate, rows fall due from the first ``plan`` of an attempt on. Without a rate, a slice has the number of rows
    that the engine allows, or ``without_limit``. With ``punctuation``, a slice ends at the next multiple of it.
    """

    without_limit: ClassVar[int]
    """Number of rows in a slice if neither a rate nor the engine limits it."""
    endless: ClassVar[str]
    """Error message for a run limited to the available rows if the source has no bound."""

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
        """Number of rows due at the last ``plan``."""

    @abstractmethod
    def rows(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Rows ``start`` to ``end - 1``. A row depends only on its number, not on the slice that contains it."""

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
        """Make all rows up to the bound available, regardless of the rate. Raises ``OptionError`` without a bound."""
        if self._bound is None:
            raise OptionError(self.endless)
        self._rate = None

    @property
    def bounded(self) -> bool:
        return self._bound is not None

    def limit_to_bounds(self) -> None:
        """Do nothing: the bound is already a number of rows, and the rate still applies."""

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
        """Rows due by the rate or, without a rate, up to the bound. Unknown without either."""
        there = self._seen if self._rate is not None else self._bound
        if there is None:
            return Backlog()
        there = there if self._bound is None else min(there, self._bound)
        return Backlog(records=max(0, there - self._position))

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self.rows(spark, int(slice.start["row"]), int(slice.end["row"]))

    def acknowledge(self, slice: Slice) -> None:
        """Do nothing: generated rows need no acknowledgement."""

    def _due(self, limits: SliceLimits) -> int:
        if self._rate is None:
            return self._position + (limits.max_records or self.without_limit)
        if self._began is None:
            self._began = (self._clock(), self._position)
        since, first = self._began
        return first + int((self._clock() - since) * self._rate)
