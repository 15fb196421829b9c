"""The commit queue on its own: epochs that another version has prepared."""

from __future__ import annotations

import random
from pathlib import Path

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.source import Slice
from epochal.engine.commits import CommitQueue
from epochal.engine.job import Participants
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from epochal.testing.simulated import SimulatedSource, World
from tests.manifests import plain_manifest
from tests.programs import current_program


class Listening(SimulatedSource):
    """Keeps what it has acknowledged."""

    def __init__(self, world: World) -> None:
        super().__init__(world, random.Random(1))
        self.acknowledged: list[Slice] = []

    def acknowledge(self, slice: Slice) -> None:
        self.acknowledged.append(slice)


def test_an_epoch_with_a_source_that_this_version_dropped_is_committed(tmp_path: Path) -> None:
    """As after an upgrade by a restart, which finds an epoch of the version before prepared (R3)."""
    catalog = MemoryCatalog(MemoryCatalogState(), 1)
    point = catalog.begin_attempt()
    kept = Listening(World(SnapshotStore(str(tmp_path)), []))
    queue = CommitQueue(catalog, current_program(participants=Participants({"kept": kept})))
    slice = Slice(start={"position": 0}, end={"position": 1})
    manifest = plain_manifest(
        1,
        branch=point.branch,
        slices={"dropped": slice, "kept": slice},
    )
    reference = ManifestReference(branch=point.branch, epoch=1, path="1.json", sha256="0" * 64)
    catalog.open_epoch(1, None)
    catalog.prepare_epoch(1, None, reference, manifest.counts)
    queue.submit(EpochScope("application", EpochKey(point.branch, 1), 1, None), manifest)
    queue.step()
    assert queue.empty and catalog.state.epochs[1].state == "committed"
    assert kept.acknowledged == [slice]
