"""Lineage of snapshots: histories, chains of state tables, and routes between two snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.conditions import NO_WATERMARKS
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing, InvalidInput
from epochal.snapshots.chain import Chain, Link, cached_state
from epochal.snapshots.manifest import BaseFile, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import StateClock

EMPTY = Chain(base_at=None, bases=(), links=())
"""The chain of every state table before an application's first epoch."""


def history(store: SnapshotStore, head: ManifestReference | None) -> Iterator[Manifest]:
    """The manifests from ``head`` to the application's first, also across forks. Manifests are read lazily."""
    while head is not None:
        manifest = store.read_manifest(head)
        yield manifest
        head = manifest.parent


def read_chains(store: SnapshotStore, head: ManifestReference | None, tables: Iterable[str]) -> dict[str, Chain]:
    """Chains of state tables, by id, at ``head``. Walks back to the last bases, or until no table is declared.

    A table begins where its last uninterrupted declaration begins; an earlier table with the same id was dropped.
    """
    table_ids = tuple(tables)
    manifests: list[Manifest] = []
    newest: Manifest | None = None
    bases: tuple[BaseFile, ...] = ()
    base_at: EpochKey | None = None
    for manifest in history(store, head):
        newest = newest or manifest
        if not bases and manifest.bases:
            bases, base_at = manifest.bases, manifest.bases[0].at
        if manifest.key == base_at:
            break
        manifests.append(manifest)
        if not any(declares(manifest, table) for table in table_ids):
            bases, base_at = (), None
            break
    return {table: _chain(table, newest, manifests, base_at, bases) for table in table_ids}


def _chain(
    table: str,
    newest: Manifest | None,
    newest_first: Sequence[Manifest],
    base_at: EpochKey | None,
    bases: Iterable[BaseFile],
) -> Chain:
    clock = None if newest is None else clock_of(newest, table)
    cached = None if newest is None else cached_state(newest, table)
    if newest is not None and cached is not None:
        return Chain(newest.key, (), (), clock, cached)
    links: list[Link] = []
    declared = True
    for manifest in newest_first:
        declared = declared and declares(manifest, table)
        links.append(_link(manifest, table) if declared else Link(manifest.key, ()))
    return Chain(base_at, _of_table(bases, table) if declared else (), tuple(reversed(links)), clock)


def declares(manifest: Manifest, table: str) -> bool:
    """True if a durable state table with this id is declared at this snapshot."""
    return any(declared.id == table and declared.durable for declared in manifest.tables)


def extend(chain: Chain, table: str, manifest: Manifest) -> Chain:
    """The chain of a state table after one more epoch. Raises ``ValueError`` when that epoch does not come next."""
    parent = manifest.parent.key if manifest.parent is not None else None
    if chain.at != parent:
        raise ValueError(f"epoch {manifest.key} comes after {parent}, not after {chain.at}")
    links, clock = (*chain.links, _link(manifest, table)), clock_of(manifest, table)
    cached = cached_state(manifest, table)
    if cached is not None:
        return Chain(manifest.key, (), (), clock, cached)
    if not manifest.bases:
        return Chain(chain.base_at, chain.bases, links, clock)
    base_at = manifest.bases[0].at
    rest = Chain(chain.base_at, chain.bases, links).after(base_at)
    if rest is None:
        raise ValueError(f"epoch {manifest.key} has bases at {base_at}, which is not in the chain")
    return Chain(base_at, _of_table(manifest.bases, table), rest, clock)


def clock_of(manifest: Manifest, table: str) -> StateClock | None:
    """Clock by which rows of a state table expire at this snapshot; ``None`` if it is not declared."""
    declared = next((declared for declared in manifest.tables if declared.id == table), None)
    if declared is None:
        return None
    clock = manifest.clock
    return StateClock(clock.places.get(declared.operator, NO_WATERMARKS).fire, clock.epoch_time)


def _of_table(bases: Iterable[BaseFile], table: str) -> tuple[BaseFile, ...]:
    return tuple(base for base in bases if base.table == table)


def _link(manifest: Manifest, table: str) -> Link:
    return Link(manifest.key, tuple(delta for delta in manifest.deltas if delta.table == table))


LONGEST_ROUTE = 2_000
"""Maximum number of epochs between two snapshots for a comparison by deltas."""


@dataclass(frozen=True)
class Route:
    """Route between two snapshots: the epochs after their last common ancestor, newest first. ``ancestor`` ``None``:
    from the beginning."""

    ancestor: ManifestReference | None
    left: tuple[Manifest, ...]
    right: tuple[Manifest, ...]


def find_route(store: SnapshotStore, left: ManifestReference, right: ManifestReference) -> Route | None:
    """Find the route between two snapshots; ``None`` if it is too long or has expired snapshots.

    Raises ``InvalidInput`` for applications without a common snapshot.
    """
    sides: list[list[Manifest]] = [[], []]
    ends: list[ManifestReference | None] = [left, right]
    while _key(ends[0]) != _key(ends[1]):
        # Numbers rise along a lineage, so the one with the larger number cannot be an ancestor of the other.
        side = 0 if _number(ends[0]) >= _number(ends[1]) else 1
        if len(sides[0]) + len(sides[1]) >= LONGEST_ROUTE:
            return None
        reference = ends[side]
        assert reference is not None  # the other end has a key and no larger number
        try:
            manifest = store.read_manifest(reference)
        except FileMissing:
            if not sides[side]:
                raise
            return None
        sides[side].append(manifest)
        ends[side] = manifest.parent
    route = Route(ends[0], tuple(sides[0]), tuple(sides[1]))
    if route.ancestor is None and (route.left and route.right):
        ours, theirs = route.left[0].application, route.right[0].application
        if ours != theirs:
            raise InvalidInput(
                f"Snapshots {left.key} of {ours!r} and {right.key} of {theirs!r} have no common snapshot and cannot "
                "be compared. Compare snapshots of one lineage, such as forks and rollbacks."
            )
    return route


def is_continuous(side: tuple[Manifest, ...], ancestor: Manifest | None, table: str) -> bool:
    """True if the ancestor's rows with the side's deltas applied are the rows at the end of the side.

    False if the table was dropped in between, or dropped and declared again.
    """
    declared = [declares(manifest, table) for manifest in (*side, *([ancestor] if ancestor is not None else []))]
    return declared == sorted(declared, reverse=True) and (not any(declared) or declared[0])


def _key(reference: ManifestReference | None) -> object:
    return None if reference is None else reference.key


def _number(reference: ManifestReference | None) -> int:
    return -1 if reference is None else reference.epoch
