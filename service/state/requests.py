"""What a look-up asks for, beyond its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from epochal.errors import InvalidInput

Isolation = Literal["read_committed", "read_uncommitted"]

DEFAULT_WAIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Which state is read.

    Without ``epoch`` and ``savepoint``: the latest committed epoch, or (``read_uncommitted``) the latest prepared one;
    ``min_epoch`` waits at most ``wait_seconds`` until it is not older. With one of them: that committed snapshot.
    """

    isolation: Isolation = "read_committed"
    epoch: int | None = None
    savepoint: str | None = None
    min_epoch: int | None = None
    wait_seconds: float = DEFAULT_WAIT_SECONDS

    def __post_init__(self) -> None:
        if self.epoch is not None and self.savepoint is not None:
            raise InvalidInput("Give epoch or savepoint, not both.")
        if self.of_the_past:
            if self.isolation != "read_committed":
                raise InvalidInput("A past epoch or a savepoint is committed; leave isolation out.")
            if self.min_epoch is not None:
                raise InvalidInput("min_epoch is for the latest state; leave it out with epoch or savepoint.")

    @property
    def of_the_past(self) -> bool:
        return self.epoch is not None or self.savepoint is not None
