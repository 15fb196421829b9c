"""Beginning to hold a snapshot: a fork, a rollback, a savepoint, a pin, an export."""

from __future__ import annotations

from sqlalchemy.orm import Session

from epochal.contracts.identity import EpochKey
from epochal.errors import NotFound, SnapshotExpired
from epochal.service.catalog.folding import FoldingRepository
from epochal.service.catalog.models import Epoch


def hold(session: Session, key: EpochKey) -> Epoch:
    """To be called in the write transaction that begins to hold the snapshot: until its end nobody collects it.

    Raises ``SnapshotExpired`` when it was collected meanwhile, ``NotFound``.
    """
    row = session.get(Epoch, (key.branch, key.epoch), with_for_update=True, populate_existing=True)
    if row is None:
        FoldingRepository(session).check_not_folded(key)
    if row is None or row.manifest_path is None:
        raise NotFound(f"There is no snapshot {key}.")
    check_not_collected(row)
    return row


def stand_on(session: Session, key: EpochKey) -> None:
    """As :func:`hold`, for a new branch; also of a snapshot that the catalog has no row of (yet)."""
    row = session.get(Epoch, (key.branch, key.epoch), with_for_update=True, populate_existing=True)
    if row is None:
        FoldingRepository(session).check_not_folded(key)
    else:
        check_not_collected(row)


def check_not_collected(row: Epoch) -> None:
    """Raises ``SnapshotExpired``."""
    if row.collected_at is not None:
        raise SnapshotExpired(
            f"Snapshot {row.branch}/{row.epoch} has expired; its files were collected on "
            f"{row.collected_at:%Y-%m-%d %H:%M} UTC. Pin snapshots, or make savepoints, of what shall be kept longer."
        )
