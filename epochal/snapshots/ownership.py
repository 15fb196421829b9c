"""Owner of a store: a file at the root names the catalog that may use it.

Two catalogs with one store would delete each other's files; one catalog with two stores would miss snapshots.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, ValidationError

from epochal.errors import FileMissing, SnapshotError
from epochal.snapshots.layout import OWNER
from epochal.snapshots.store import SnapshotStore


class StoreOwner(BaseModel):
    """Content of the owner file. ``catalog``: location of the catalog when it took the store, for display.

    ``restoring``: backup that is being restored into the store, ``copied_from``: store that is being copied into it;
    it must not be used before that ends. ``moved_to``: the store that a copy replaced this one by; it must not be used
    any more. ``earlier``: incarnations before copies, whose backups can be restored into this store.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = 1
    installation: str
    incarnation: str
    catalog: str
    since: datetime
    restoring: str | None = None
    copied_from: str | None = None
    moved_to: str | None = None
    earlier: tuple[str, ...] = ()

    @property
    def is_incomplete(self) -> bool:
        """True while the store is being filled."""
        return self.restoring is not None or self.copied_from is not None

    def completed(self) -> StoreOwner:
        """The owner of the filled store."""
        return self.model_copy(update={"restoring": None, "copied_from": None})


def owner_of(store: SnapshotStore) -> StoreOwner | None:
    """Owner of a store; ``None`` for a new store. Raises ``SnapshotError`` if the file cannot be read."""
    try:
        data = store.read(OWNER)
    except FileMissing:
        return None
    try:
        return StoreOwner.model_validate_json(data)
    except ValidationError as error:
        raise SnapshotError(
            f"{store.location(OWNER)} is invalid ({error.errors()[0]['msg']}). It names the catalog that owns "
            "the store. Restore it from a backup."
        ) from None


def give_new(store: SnapshotStore, owner: StoreOwner) -> bool:
    """Write the owner file of a store without one. ``False``: another catalog was faster. Raises ``SnapshotError``,
    ``StorageFull``."""
    return store.create(OWNER, _encoded(owner))


def give_to(store: SnapshotStore, owner: StoreOwner) -> None:
    """Write the owner file. Raises ``SnapshotError``, ``StorageFull``."""
    store.write(OWNER, _encoded(owner))


def _encoded(owner: StoreOwner) -> bytes:
    return owner.model_dump_json(exclude_none=True).encode() + b"\n"
