"""What a look-up asks for, beyond its keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from epochal.contracts.catalog import ManifestReference
from epochal.errors import InvalidInput
from epochal.service.domain.ports import Snapshots
from epochal.wire.state import DEFAULT_WAIT_SECONDS, Isolation


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Which state is read.

    Without ``epoch``, ``savepoint``, ``tag`` and ``at``: the latest committed epoch, or (``read_uncommitted``) the
    latest prepared one; ``min_epoch`` waits at most ``wait_seconds`` until it is not older. With one of them: that
    committed snapshot; ``at`` is the newest that was committed at that time.
    """

    isolation: Isolation = "read_committed"
    epoch: int | None = None
    savepoint: str | None = None
    tag: str | None = None
    at: datetime | None = None
    min_epoch: int | None = None
    wait_seconds: float = DEFAULT_WAIT_SECONDS

    def __post_init__(self) -> None:
        if len(self._moments) > 1:
            raise InvalidInput(f"Give {' or '.join(self._moments)}, not both.")
        if self.of_the_past:
            if self.isolation != "read_committed":
                raise InvalidInput("A past epoch or a savepoint is committed; leave isolation out.")
            if self.min_epoch is not None:
                raise InvalidInput("min_epoch is for the latest state; leave it out with a snapshot of the past.")

    @property
    def of_the_past(self) -> bool:
        return bool(self._moments)

    def resolve(self, snapshots: Snapshots, application: str) -> ManifestReference:
        """The snapshot of the past that is meant. ``NotFound``, ``SnapshotExpired``, ``InvalidInput``."""
        return snapshots.resolve(application, epoch=self.epoch, savepoint=self.savepoint, tag=self.tag, at=self.at)

    @property
    def _moments(self) -> list[str]:
        options = {"epoch": self.epoch, "savepoint": self.savepoint, "tag": self.tag, "at": self.at}
        return [name for name, value in options.items() if value is not None]


@dataclass(frozen=True)
class ReplicaLag:
    """By how many epochs, and for how many seconds, replicas are behind an application's latest committed epoch."""

    epochs: int
    seconds: float
