"""Whose a store is: a file at its root names the catalog that it belongs to, so that no other one works on it.

Two catalogs on one store would collect each other's files; one catalog on two stores would look for snapshots where
they are not.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from epochal.errors import FileMissing, SnapshotError
from epochal.snapshots.layout import OWNER
from epochal.snapshots.store import SnapshotStore


class StoreOwner(BaseModel):
    """``catalog``: where it was when it took the store, for people. ``restoring``: the backup that is being restored
    into the store; nothing may work on it before that is done."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    installation: str
    incarnation: str
    catalog: str
    since: datetime
    restoring: str | None = None


def owner_of(store: SnapshotStore) -> StoreOwner | None:
    """``None``: nobody's yet. Raises ``SnapshotError`` when it cannot be read."""
    try:
        data = store.read(OWNER)
    except FileMissing:
        return None
    try:
        return StoreOwner.model_validate_json(data)
    except ValidationError as error:
        raise SnapshotError(
            f"{store.location(OWNER)} cannot be understood ({error.errors()[0]['msg']}): it says which catalog the "
            "store belongs to. Put it back from a backup."
        ) from None


def give_to(store: SnapshotStore, owner: StoreOwner) -> None:
    """Raises ``SnapshotError``, ``StorageFull``."""
    store.write(OWNER, owner.model_dump_json(exclude_none=True).encode() + b"\n")
