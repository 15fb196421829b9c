"""Files that a driver removes or keeps when it is fenced during E4."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from epochal.contracts.catalog import EpochRecord, ManifestReference
from epochal.engine.commits import CommitQueue
from epochal.engine.coordinator import Coordinator
from epochal.engine.position import PendingBases, Position
from epochal.errors import CatalogUnavailable, Fenced, OutcomeUnknown
from epochal.snapshots.store import SnapshotStore
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from tests.kit.programs import current_program

OTHER = ManifestReference(branch="main", epoch=1, path="main/manifests/0000000001-2-other.json", sha256="0" * 64)


class Unreadable(MemoryCatalog):
    """The first read of a row fails."""

    failed = False

    def epoch(self, epoch: int) -> EpochRecord | None:
        if not self.failed:
            self.failed = True
            raise CatalogUnavailable("away")
        return super().epoch(epoch)


def run_epoch(catalog: MemoryCatalog, folder: Path) -> list[str]:
    """Files that a fenced epoch leaves."""
    store, current = SnapshotStore(str(folder)), current_program(store=str(folder))
    position, queue = Position(catalog.begin_attempt().branch, 1, None), CommitQueue(catalog, current)
    coordinator = Coordinator(current, catalog, store, queue, position, PendingBases(), now=lambda: datetime.now(UTC))
    with pytest.raises(Fenced):
        coordinator.run_epoch({}, ["command"])
    return store.list("main")


def test_an_epoch_decided_by_a_successor_retains_no_files_of_the_zombie(tmp_path: Path) -> None:
    def overtaken(call: str, landed: bool) -> None:
        if call == "prepare" and not landed:
            row = state.epochs[1]
            state.attempt, state.epochs[1] = 2, row.model_copy(update={"state": "prepared", "manifest": OTHER})
            raise OutcomeUnknown("the answer was lost")

    state = MemoryCatalogState()
    assert run_epoch(MemoryCatalog(state, 1, overtaken), tmp_path) == []


def test_a_manifest_decided_before_the_fence_is_kept(tmp_path: Path) -> None:
    def overtaken(call: str, landed: bool) -> None:
        if call == "prepare" and landed:
            state.attempt = 2
            raise OutcomeUnknown("the answer was lost")

    state = MemoryCatalogState()
    left = run_epoch(Unreadable(state, 1, overtaken), tmp_path)
    assert state.head is not None and left == [state.head.path]
