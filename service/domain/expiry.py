"""A snapshot may expire while it is being read: then its reader is told that, and not that a file is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing, SnapshotExpired
from epochal.service.domain.ports import Snapshots


@contextmanager
def expiring(snapshots: Snapshots, *keys: EpochKey) -> Iterator[None]:
    """Around the reading of snapshots: ``FileMissing`` of one that was collected becomes ``SnapshotExpired``."""
    try:
        yield
    except FileMissing as error:
        for key in keys:
            when = snapshots.expired(key)
            if when is not None:
                raise SnapshotExpired(
                    f"Snapshot {key} was collected at {when:%Y-%m-%d %H:%M} UTC: its files are gone. "
                    "Read a later epoch, or a savepoint."
                ) from error
        raise
