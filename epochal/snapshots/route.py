"""How two snapshots are related: their last common ancestor, and what was done since on either side."""

from __future__ import annotations

from dataclasses import dataclass

from epochal.contracts.catalog import ManifestReference
from epochal.errors import FileMissing, InvalidInput
from epochal.snapshots.lineage import declares
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore

LONGEST_ROUTE = 2_000
"""Epochs between two snapshots beyond which whole states are compared, and not the deltas between."""


@dataclass(frozen=True)
class Route:
    """``left`` and ``right`` are the epochs after the ancestor, newest first. No ancestor: from the very beginning."""

    ancestor: ManifestReference | None
    left: tuple[Manifest, ...]
    right: tuple[Manifest, ...]


def find_route(store: SnapshotStore, left: ManifestReference, right: ManifestReference) -> Route | None:
    """The way between two snapshots; ``None`` when it is very long, or leads over snapshots that have expired.

    Raises ``InvalidInput`` when they are of applications that have no snapshot in common.
    """
    sides: list[list[Manifest]] = [[], []]
    ends: list[ManifestReference | None] = [left, right]
    while _key(ends[0]) != _key(ends[1]):
        # Numbers rise along a lineage, so the one with the larger number cannot be an ancestor of the other.
        side = 0 if _number(ends[0]) >= _number(ends[1]) else 1
        if len(sides[0]) + len(sides[1]) >= LONGEST_ROUTE:
            return None
        reference = ends[side]
        assert reference is not None  # the other one has a key, and no larger number
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
                f"Snapshots {left.key} of {ours!r} and {right.key} of {theirs!r} have no snapshot in common, so there "
                "is nothing that one could differ in from the other. Give snapshots of one lineage: forks, rollbacks."
            )
    return route


def is_continuous(side: tuple[Manifest, ...], ancestor: Manifest | None, table: str) -> bool:
    """Whether the table's rows at the end of a side are those of the ancestor with the side's deltas over them.

    Not so where the table was dropped on the way, or dropped and declared anew.
    """
    declared = [declares(manifest, table) for manifest in (*side, *([ancestor] if ancestor is not None else []))]
    return declared == sorted(declared, reverse=True) and (not any(declared) or declared[0])


def _key(reference: ManifestReference | None) -> object:
    return None if reference is None else reference.key


def _number(reference: ManifestReference | None) -> int:
    return -1 if reference is None else reference.epoch
