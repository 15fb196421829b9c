"""Positions from which sources continue: the snapshot, or the position set by an import, also on later branches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from epochal.contracts.catalog import Change, ManifestReference
from epochal.contracts.source import Slice
from epochal.engine.recovery import restore_sources
from epochal.snapshots.store import SnapshotStore
from tests.kit.manifests import plain_manifest

MOVED = {"at": "2030-01-01T00:00:00+00:00"}
IMPORT = Change(kind="import", detail={"origin": {"sources": {"kafka": MOVED}}})


class RecordingSource:
    """A source that records the arguments of ``restore``."""

    def __init__(self) -> None:
        self.checkpoint: dict[str, Any] | None = None
        self.ends: list[int] = []

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self.checkpoint, self.ends = checkpoint, [slice.end["n"] for slice in slices]


class Line:
    """A lineage of epochs in a store."""

    def __init__(self, folder: Path) -> None:
        self.store = SnapshotStore(str(folder))
        self.head: ManifestReference | None = None

    def epoch(self, branch: str, number: int, *sources: str, **more: Any) -> None:
        manifest = plain_manifest(
            number,
            application="moved",
            branch=branch,
            parent=self.head,
            slices={name: Slice(start={"n": number - 1}, end={"n": number}) for name in sources},
            **more,
        )
        self.head = self.store.write_manifest(manifest)

    def restored(self, begun: Change | None = None) -> dict[str, tuple[dict[str, Any] | None, list[int]]]:
        sources = {"kafka": RecordingSource(), "files": RecordingSource()}
        restore_sources(self.store, self.head, sources, begun)  # type: ignore[arg-type]
        return {name: (source.checkpoint, source.ends) for name, source in sources.items()}


@pytest.fixture
def line(tmp_path: Path) -> Line:
    line = Line(tmp_path)
    line.epoch("first", 1, "kafka", "files", source_checkpoints={"kafka": {"c": 1}, "files": {"c": 2}})
    line.epoch("first", 2, "kafka", "files")
    return line


def test_without_an_import_all_slices_are_restored(line: Line) -> None:
    assert line.restored() == {"kafka": ({"c": 1}, [1, 2]), "files": ({"c": 2}, [1, 2])}


def test_a_moved_source_begins_at_its_new_position(line: Line) -> None:
    assert line.restored(IMPORT) == {"kafka": (MOVED, []), "files": ({"c": 2}, [1, 2])}


def test_an_import_without_moves_changes_no_position(line: Line) -> None:
    assert line.restored(Change(kind="import", detail={"origin": {"sources": {}}})) == line.restored()
    assert line.restored(Change(kind="rollback", detail={"branch": "first"})) == line.restored()


def test_an_epoch_without_new_input_does_not_undo_the_move(line: Line) -> None:
    line.epoch("second", 3, "files", changes=(IMPORT,))
    assert line.restored() == {"kafka": (MOVED, []), "files": ({"c": 2}, [1, 2, 3])}


def test_slices_after_the_move_are_restored(line: Line) -> None:
    line.epoch("second", 3, "kafka", changes=(IMPORT,))
    line.epoch("second", 4, "kafka", "files")
    line.epoch("third", 5, "kafka", changes=(Change(kind="rollback"),))
    assert line.restored() == {"kafka": (MOVED, [3, 4, 5]), "files": ({"c": 2}, [1, 2, 4])}


def test_only_the_last_checkpoint_is_restored(line: Line) -> None:
    line.epoch("second", 3, "kafka", changes=(IMPORT,))
    line.epoch("second", 4, "kafka", source_checkpoints={"kafka": {"c": 9}, "files": {"c": 8}})
    line.epoch("second", 5, "kafka")
    assert line.restored() == {"kafka": ({"c": 9}, [4, 5]), "files": ({"c": 8}, [])}


def test_the_later_of_two_moves_applies(line: Line) -> None:
    line.epoch("second", 3, "kafka", changes=(IMPORT,))
    again = Change(kind="import", detail={"origin": {"sources": {"kafka": {"at": "2031-01-01T00:00:00+00:00"}}}})
    line.epoch("third", 4, "files", changes=(again,))
    assert line.restored()["kafka"] == ({"at": "2031-01-01T00:00:00+00:00"}, [])
