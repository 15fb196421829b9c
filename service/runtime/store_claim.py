"""Ownership of a store by a catalog: checking and claiming it. See ``epochal.snapshots.ownership``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Final, TypeVar
from uuid import uuid4

from epochal.background.retries import Backoff, attempts
from epochal.contracts.catalog import ManifestReference
from epochal.errors import (
    Conflict,
    EnvironmentProblem,
    EpochalError,
    FileMissing,
    SnapshotError,
    StorageFull,
    StoreRefuses,
    StoreUnavailable,
)
from epochal.service.catalog.database import Database
from epochal.service.catalog.installations import InstallationRepository
from epochal.service.catalog.leases import LockKey, transaction_lock
from epochal.service.catalog.migration import oldest_reader
from epochal.service.catalog.models import Installation
from epochal.service.catalog.types import now
from epochal.service.domain.checks import Finding, failed, ok
from epochal.snapshots.layout import OWNER
from epochal.snapshots.manifest import FileReference
from epochal.snapshots.ownership import StoreOwner, give_new, give_to, owner_of
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger("epochal.store")

_PAUSES: Final = Backoff(0.5, 4.0)
_CLOCK_TOLERANCE: Final = timedelta(minutes=5)
"""Garbage collection compares the store's times with the clock of the control plane."""
_PROBED = 3
"""Number of the newest snapshots that are looked up in a store without an owner record."""


Result = TypeVar("Result")


class StoreMismatch(Conflict):
    """The store belongs to another catalog, or the catalog to another store."""

    slug = "store-mismatch"


@dataclass(frozen=True)
class _Seen:
    """The ownership found in a store. ``newest``: the catalog's newest snapshots, and ``holds``: the store contains one
    of them; both are read only if the store has no owner record."""

    owner: StoreOwner | None
    newest: Sequence[ManifestReference] = ()
    holds: bool = False


def claim_store(database: Database, store: SnapshotStore) -> str:
    """Claim the store for this catalog, at the start. No transaction is open during calls to the store. Returns the
    incarnation of the installation, for :func:`confirm_claim`.

    Waits for a store that does not answer, however long it takes. Raises ``StoreMismatch``; ``EnvironmentProblem`` if
    the store refuses requests or cannot be used; ``CatalogUnavailable``.
    """
    claimed = when_available(lambda: _claim(database, store))
    assert claimed is not None
    return claimed


def when_available(work: Callable[[], Result], sleep: Callable[[float], object] = time.sleep) -> Result | None:
    """Repeat ``work`` until the store answers; ``None`` if a true result of ``sleep`` ends the waiting. Raises
    ``EnvironmentProblem`` if the store refuses requests."""
    for attempt in attempts(_PAUSES, sleep=sleep):
        try:
            return work()
        except StoreRefuses as error:
            raise _unusable(error.message) from error
        except StoreUnavailable as error:
            if attempt.number == 1:
                log.warning("waiting for the store: %s", error)
    return None


def confirm_claim(database: Database, store: SnapshotStore, incarnation: str) -> None:
    """Check, once this control plane is registered as a node, that the store was not moved since the claim.
    ``epochal store copy`` moves it only if no node is registered. Raises ``StoreMismatch``, ``CatalogUnavailable``."""
    with database.writing() as session:
        row = InstallationRepository(session).ensure()  # it waits for a move that is being committed
        if row.incarnation != incarnation:
            raise _elsewhere(row.store, store)


def _claim(database: Database, store: SnapshotStore) -> str:
    check_writable(store)
    _make_installation(database)
    # The id is committed before the store is claimed: a store that names an id without a catalog would be lost.
    seen = _look(database, store)
    with database.writing() as session:
        row = InstallationRepository(session).ensure()
        _check(seen, row, store)
        row.store = store.url
    if seen.owner is None:
        _check(_look(database, store), row, store)  # another catalog may have claimed it in the meantime
        mine = StoreOwner(installation=row.id, incarnation=row.incarnation, catalog=database.place, since=now())
        if not give_new(store, mine):
            _check(_look(database, store), row, store)
    elif seen.owner.is_incomplete:  # a restore or a copy was killed after the catalog was written
        give_to(store, seen.owner.completed())
    return row.incarnation


def _make_installation(database: Database) -> None:
    """Create the installation's row. Another control plane may be starting at the same time."""
    with database.reading() as session:
        if InstallationRepository(session).find() is not None:
            return
    oldest = oldest_reader()  # it reads all migrations, which takes a while
    with database.writing() as session:
        transaction_lock(session, LockKey.STORE)
        InstallationRepository(session).ensure(oldest)


def check_store(database: Database, store: SnapshotStore) -> None:
    """Check the ownership, for processes that only read. Raises ``StoreMismatch`` if the store belongs to another
    catalog."""
    with database.reading() as session:
        row = InstallationRepository(session).find()
    if row is not None:  # else no control plane of this version has started yet
        _check(_look(database, store), row, store)


def await_store(database: Database, store: SnapshotStore, over: Event) -> None:
    """:func:`check_store` as soon as the store answers, unless ``over`` is set. Raises ``StoreMismatch``,
    ``EnvironmentProblem``."""
    when_available(lambda: check_store(database, store), over.wait)


def _look(database: Database, store: SnapshotStore) -> _Seen:
    owner = owner_of(store)
    if owner is not None:
        return _Seen(owner)
    with database.reading() as session:
        newest = InstallationRepository(session).newest_snapshots(_PROBED)
    return _Seen(None, newest, any(_is_there(store, reference.path) for reference in newest))


def writable_finding(store: SnapshotStore) -> Finding:
    """Finding of :func:`check_writable`. Never raises."""
    try:
        check_writable(store)
    except EpochalError as error:
        return failed("store", *_in_two(error.message))
    return ok("store", f"{store.url}: files are written whole, found again, listed and deleted.")


def identity_finding(database: Database | None, store: SnapshotStore) -> Finding:
    """Finding of the checks of :func:`claim_store`, without claiming the store. Without a ``database`` there is no
    catalog yet, or it has no installation row. Never raises."""
    check = "store identity"
    try:
        if database is None:
            if (owner := owner_of(store)) is not None:
                raise _of_another(owner, store)
            return ok(check, "The store belongs to no catalog yet.")
        check_store(database, store)
        with database.reading() as session:
            row = InstallationRepository(session).find()
            if row is not None:
                return ok(check, f"The store belongs to this catalog (installation {row.id}).")
        return identity_finding(None, store)
    except EpochalError as error:
        return failed(check, *_in_two(error.message))


def check_writable(store: SnapshotStore) -> None:
    """Check the operations that Epochal requires of a store, with one small file.

    Raises ``EnvironmentProblem``; ``StoreUnavailable`` if the store does not answer.
    """
    folder, data = f"epochal-probe-{uuid4().hex}", b"epochal store probe"
    path = f"{folder}/probe"
    try:
        store.write(path, data)
        try:
            _check_probe(store, folder, path, data)
        finally:
            store.delete(path)
            store.remove_empty_folder(folder)
    except (SnapshotError, StorageFull, StoreRefuses, OSError, ValueError, ImportError, NotImplementedError) as error:
        reason = error.message if isinstance(error, EpochalError) else f"{store.url} cannot be used: {error}."
        raise _unusable(reason) from error


def _check_probe(store: SnapshotStore, folder: str, path: str, data: bytes) -> None:
    file = FileReference(path=path, sha256="", bytes=len(data), rows=0)
    if (
        store.read(path) != data
        or store.size(path) != len(data)
        or store.read_ranges(file, [(1, 2)], "the probe") != [data[1:3]]
    ):
        raise SnapshotError(f"{store.location(path)} does not return the data that was written to it.")
    if store.create(path, b"another one"):
        raise SnapshotError(
            f"{store.location(path)} was replaced although the write required that it does not exist: the store does "
            "not support conditional writes (If-None-Match)."
        )
    listed = next((entry for entry in store.entries(folder) if entry.path == path), None)
    if listed is None:
        raise SnapshotError(f"{store.location(path)} is not listed after it was written.")
    if listed.written_at is not None and abs(listed.written_at - datetime.now(UTC)) > _CLOCK_TOLERANCE:
        raise SnapshotError(
            f"The clock of this machine ({datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}) and that of the store {store.url} "
            f"({listed.written_at:%Y-%m-%dT%H:%M:%SZ}) differ by more than {_CLOCK_TOLERANCE.seconds // 60} minutes. "
            "Set the clock, for example by NTP."
        )


def _unusable(reason: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{reason} The control plane and drivers require write access to the store: correct its permissions or "
        "credentials, remount it read-write, or name another one (--store)."
    )


def _check(seen: _Seen, row: Installation, store: SnapshotStore) -> None:
    """Check the ownership. Raises ``StoreMismatch``."""
    owner = seen.owner
    if owner is None:
        if not seen.holds:
            _check_unmarked(row.store, seen.newest, store)
    elif owner.moved_to is not None:
        raise StoreMismatch(
            f"The store {store.url} was replaced by {owner.moved_to} (`epochal store copy`). {_set_to(owner.moved_to)}"
        )
    elif owner.incarnation != row.incarnation:
        if owner.copied_from is not None and owner.installation == row.id:
            raise StoreMismatch(
                f"The store {store.url} is an incomplete copy of {owner.copied_from}, which the installation uses. Run "
                "the same `epochal store copy` again to complete it."
            )
        if owner.restoring is not None:
            raise StoreMismatch(
                f"Backup {owner.restoring} is being restored into the store {store.url}; the restore is incomplete. "
                "Run the same `epochal backup restore` again to continue it."
            )
        if owner.installation != row.id:
            raise _of_another(owner, store)
        if row.incarnation in owner.earlier:
            raise StoreMismatch(
                f"The catalog is older than the copy of its store to {store.url}, on {owner.since:%Y-%m-%d %H:%M} UTC. "
                "Start the control plane with the current catalog; if it is lost, restore a backup into this store."
            )
        if row.store not in (None, store.url):
            raise _elsewhere(row.store, store)
        raise StoreMismatch(
            f"The store {store.url} was taken over by a restored catalog ({owner.catalog}) on "
            f"{owner.since:%Y-%m-%d %H:%M} UTC; this catalog is its obsolete original. Start the control plane with "
            "the restored catalog; this one must not be used any more."
        )


def _check_unmarked(known: str | None, newest: Sequence[ManifestReference], store: SnapshotStore) -> None:
    """Check a store that has neither an owner record nor the catalog's snapshots: new, empty, or another one.
    ``known``: the store's URL at the last start."""
    if newest:
        raise StoreMismatch(
            f"The store {store.url} does not hold the catalog's snapshots ({newest[0].path} and others are missing); "
            f"they were in {known or 'another one'}. Mount that, or name it with --store; `epochal store "
            "copy` moves a store."
        )
    if known not in (None, store.url):
        raise StoreMismatch(
            f"The catalog uses the store {known}, not {store.url}: a catalog has exactly one store. Set --store to "
            "that store; `epochal store copy` moves it."
        )


def _elsewhere(known: str | None, store: SnapshotStore) -> StoreMismatch:
    return StoreMismatch(
        f"The catalog uses the store {known}, not {store.url}, which is an obsolete copy. {_set_to(known or '')}"
    )


def _set_to(url: str) -> str:
    return f"Set EPOCHAL_STORE={url} (or --store, or `store` in the settings file)."


def _of_another(owner: StoreOwner, store: SnapshotStore) -> StoreMismatch:
    return StoreMismatch(
        f"The store {store.url} belongs to another catalog: {owner.catalog}, since {owner.since:%Y-%m-%d %H:%M} UTC. "
        "Two catalogs would delete each other's files. Start the control plane with that catalog (--database-url, "
        "--home), or name another store (--store). If that catalog is lost, restore a backup of it; to assign the "
        f"store to this one, delete {store.location(OWNER)}."
    )


def _is_there(store: SnapshotStore, path: str) -> bool:
    try:
        store.size(path)
    except FileMissing:
        return False
    return True


def _in_two(message: str) -> tuple[str, str]:
    """Split a message into finding and remedy."""
    said, _, remedy = message.partition(". ")
    return f"{said.rstrip('.')}.", remedy
