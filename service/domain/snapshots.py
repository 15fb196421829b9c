"""Snapshots as readers name them: the port that resolves names, and the options of a read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from epochal.contracts.catalog import Change, EpochRecord, EpochState, ManifestReference
from epochal.contracts.configuration import Parameters
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing, InvalidInput, SnapshotExpired
from epochal.wire.state import DEFAULT_WAIT_SECONDS, Isolation


@dataclass(frozen=True)
class SnapshotOrigin:
    """Time and origin of a snapshot. ``application`` is the name, also of a deleted application."""

    application: str
    state: EpochState
    committed_at: datetime | None
    version: int
    artifact: str
    filename: str
    parameters: Parameters
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class ApplicationHead:
    """The head of an application's lineage. ``prepared``: epochs that are not committed, oldest first."""

    application: str
    branch: str
    committed: ManifestReference | None
    prepared: tuple[ManifestReference, ...]


class Snapshots(Protocol):
    """Resolves names of snapshots, with SQL only. Raises ``NotFound`` for an unknown application."""

    def heads(self) -> Sequence[ApplicationHead]:
        """Heads of all applications, including stopped ones. Replicas follow them."""

    def head(self, application: str) -> ApplicationHead:
        """One application."""

    def resolve(
        self,
        application: str,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        tag: str | None = None,
        at: datetime | None = None,
    ) -> ManifestReference:
        """The committed snapshot with this name. Raises ``NotFound``; ``SnapshotExpired`` beyond ``retained_epochs``
        unless a savepoint, a pin or a fork holds it; ``InvalidInput`` unless exactly one name is given."""

    def expired(self, key: EpochKey) -> datetime | None:
        """Time at which garbage collection deleted the snapshot's files; ``None`` if they exist."""

    def origins(self, keys: Collection[EpochKey]) -> Mapping[EpochKey, SnapshotOrigin]:
        """Origins of snapshots by key; unknown ones are left out."""

    def reference(self, application: str, key: EpochKey) -> ManifestReference:
        """The manifest of a prepared or committed epoch of the application's lineage, or of a branch that a rollback
        left. Raises ``NotFound`` for any other key, and for an unknown application."""

    def record(self, application: str, epoch: int) -> EpochRecord:
        """An epoch of the application's lineage, in any state. Raises ``NotFound``."""


@contextmanager
def expiring(snapshots: Snapshots, *keys: EpochKey) -> Iterator[None]:
    """While reading snapshots: replace ``FileMissing`` by ``SnapshotExpired`` if one of them was collected."""
    try:
        yield
    except FileMissing as error:
        for key in keys:
            when = snapshots.expired(key)
            if when is not None:
                raise SnapshotExpired(
                    f"Snapshot {key} was collected at {when:%Y-%m-%d %H:%M} UTC: its files are deleted. Read a "
                    "later epoch, or a savepoint."
                ) from error
        raise


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """The state to read.

    Without ``epoch``, ``savepoint``, ``tag`` and ``at``: the latest committed epoch, or with ``read_uncommitted`` the
    latest prepared one; ``min_epoch`` waits up to ``wait_seconds`` for that epoch. Otherwise the named committed
    snapshot; ``at``: the newest that was committed at that time.
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
            raise InvalidInput(f"Specify {' or '.join(self._moments)}, not both.")
        if self.of_the_past:
            if self.isolation != "read_committed":
                raise InvalidInput("A past epoch or a savepoint is committed; leave isolation out.")
            if self.min_epoch is not None:
                raise InvalidInput("min_epoch is for the latest state; leave it out with a snapshot of the past.")

    @property
    def of_the_past(self) -> bool:
        return bool(self._moments)

    def resolve(self, snapshots: Snapshots, application: str) -> ManifestReference:
        """The past snapshot to read. Raises ``NotFound``, ``SnapshotExpired``, ``InvalidInput``."""
        return snapshots.resolve(application, epoch=self.epoch, savepoint=self.savepoint, tag=self.tag, at=self.at)

    @property
    def _moments(self) -> list[str]:
        options = {"epoch": self.epoch, "savepoint": self.savepoint, "tag": self.tag, "at": self.at}
        return [name for name, value in options.items() if value is not None]


@dataclass(frozen=True)
class ReplicaLag:
    """Number of epochs and seconds by which replicas lag behind an application's latest committed epoch."""

    epochs: int
    seconds: float
