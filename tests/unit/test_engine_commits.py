"""The commit queue: epochs prepared by another version, and refused rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.source import Slice
from epochal.engine.commits import CommitQueue, drain
from epochal.engine.job import Participants
from epochal.errors import RowRefused
from epochal.snapshots.manifest import SinkHandles
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.manifests import plain_manifest
from tests.kit.programs import current_program
from tests.kit.simulation.pipeline import SimulatedSource, World


class RecordingSource(SimulatedSource):
    """Records the acknowledged slices."""

    def __init__(self, world: World) -> None:
        super().__init__(world, random.Random(1))
        self.acknowledged: list[Slice] = []

    def acknowledge(self, slice: Slice) -> None:
        self.acknowledged.append(slice)


def test_an_epoch_with_a_source_that_this_version_dropped_is_committed(tmp_path: Path) -> None:
    """After an upgrade by a restart, recovery (R3) finds an epoch that the previous version prepared."""
    catalog = MemoryCatalog(MemoryCatalogState(), 1)
    point = catalog.begin_attempt()
    kept = RecordingSource(World(SnapshotStore(str(tmp_path)), []))
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


class RefusingSink:
    """Refuses the rows of one epoch until they are dropped."""

    def __init__(self, refused: int | None) -> None:
        self.refused = refused
        self.committed: list[int] = []
        self.tries = 0

    def commit(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        self.tries += 1
        if epoch.epoch == self.refused and handles:
            raise RowRefused("The database refuses row id=5 (SQLSTATE 23514, column v).")
        self.committed.append(epoch.epoch)

    def abort(self, epoch: EpochScope, handles: Sequence[Handle]) -> None:
        assert epoch.epoch == self.refused


def test_a_refused_row_stops_only_its_sink() -> None:
    """The other sink passes ``max_uncommitted_epochs``; dropping the refused epoch releases the stopped sink."""
    catalog = MemoryCatalog(MemoryCatalogState(), 1)
    point = catalog.begin_attempt()
    bad, good = RefusingSink(3), RefusingSink(None)
    program = current_program(participants=Participants({}, sinks={"bad": bad, "good": good}))  # type: ignore[dict-item]
    queue = CommitQueue(catalog, program)
    handle = Handle(owner="bad", subtask=0, rows=1, bytes=1, payload={})
    last = 3 * program.program.configuration.max_uncommitted_epochs
    for number in range(1, last + 1):
        assert queue.has_room
        manifest = plain_manifest(
            number,
            branch=point.branch,
            sinks={"bad": SinkHandles(kind="dbms", target="t", handles=(handle,))},
        )
        reference = ManifestReference(branch=point.branch, epoch=number, path=f"{number}.json", sha256="0" * 64)
        parent = EpochKey(point.branch, number - 1) if number > 1 else None
        catalog.open_epoch(number, parent)
        catalog.prepare_epoch(number, parent, reference, manifest.counts)
        queue.submit(EpochScope("orders", EpochKey(point.branch, number), 1, parent), manifest)
        queue.step()
    assert good.committed == list(range(1, last + 1))
    assert bad.committed == [1, 2] and catalog.state.epochs[2].state == "committed"
    assert bad.tries == 3  # a stopped sink is not retried with each epoch of the other sinks
    drain(queue, lambda seconds: None, lambda waiting: None)
    assert queue.settled and not queue.empty
    with pytest.raises(RowRefused, match=r"Sink 'bad' is stopped.*23514.*`epochal transaction abort orders bad 3`"):
        queue.check_refused()
    queue.give_up("bad", 3)
    queue.step()
    assert queue.empty and bad.committed == list(range(1, last + 1))
    queue.check_refused()
