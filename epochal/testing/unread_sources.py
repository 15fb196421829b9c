"""What sources have in common that Spark never reads: those of the engine without Spark and of the simulation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from epochal.contracts.source import Slice, Source


class NotForSpark:
    """The half of a source that describes its rows to Spark."""

    def schema(self, spark: Any) -> Any:
        raise NotImplementedError("no rows of this source go through Spark")

    def read(self, spark: Any, slice: Slice) -> Any:
        raise NotImplementedError("no rows of this source go through Spark")


class LogSource(NotForSpark, Source):
    """A log in memory. A ``position`` is the number of its entries before; slices follow on each other."""

    def __init__(self) -> None:
        self._position = 0

    @property
    @abstractmethod
    def length(self) -> int:
        """How many entries the log has by now."""

    @property
    def ended(self) -> bool:
        return self._position >= self.length

    def limit_to_available(self) -> None:
        """All of it is."""

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._position = checkpoint["position"] if checkpoint else 0
        for slice in slices:
            if slice.start["position"] != self._position:
                raise AssertionError(f"slices do not follow on each other: {slice} after {self._position}")
            self._position = slice.end["position"]

    def checkpoint(self) -> dict[str, Any]:
        return {"position": self._position}

    def up_to(self, end: int, rows: int, detail: dict[str, Any] | None = None) -> Slice:
        """The slice from the current position to before ``end``."""
        return Slice(start={"position": self._position}, end={"position": end}, detail=detail or {}, rows=rows)

    def accept(self, slice: Slice) -> None:
        self._position = slice.end["position"]

    def acknowledge(self, slice: Slice) -> None:
        """Nobody outside has to know."""
