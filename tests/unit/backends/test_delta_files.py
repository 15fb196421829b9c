"""Local files of the Delta sink, which tasks write in their place: durable, swept after a crash, and a full disk."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from epochal.errors import StorageFull
from epochal.testing.sink_contract import DecidedEpochs, batch, epoch, pre_commit, rows, same, start
from tests.kit.delta_tables import DeltaFolder, started


def test_files_and_their_folders_are_durable_before_the_handle(
    folder: DeltaFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[int, int] = {}
    fsync = os.fsync

    def record(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced[status.st_ino] = status.st_size
        fsync(descriptor)

    sink = started(folder)
    monkeypatch.setattr(os, "fsync", record)
    handle = pre_commit(sink, epoch(1), rows(1, 2))
    file = folder.path / handle.payload["files"][0]["path"]
    assert synced[file.stat().st_ino] == file.stat().st_size == handle.bytes
    while file != folder.path:
        file = file.parent
        assert file.stat().st_ino in synced


def test_a_file_of_a_task_that_died_is_swept(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    dying = start(sink, epoch(1))
    dying.write(batch(rows(7)))
    (part,) = folder.leftovers()
    handle = pre_commit(sink, epoch(1, attempt=2), rows(1))
    decided.commit(sink, epoch(1, attempt=2), [handle])
    assert part in folder.leftovers()
    assert started(folder, attempt=3, at=1).sweep(epoch(1, attempt=3), [handle]) == 1
    assert folder.leftovers() == []
    assert same(folder.visible(), rows(1))
    dying.pre_commit()  # a task that is stopped for a long time: its handle arrives at a driver that has ended
    assert same(folder.visible(), rows(1))


def test_a_file_of_a_task_that_fails_is_removed(folder: DeltaFolder) -> None:
    transaction = start(started(folder), epoch(1))
    transaction.write(batch(rows(1)))
    assert len(folder.leftovers()) == 1
    transaction.discard()
    assert folder.leftovers() == []


class Full(io.FileIO):
    """A file on a disk that has space for its first bytes only."""

    def write(self, data: Any) -> int:
        if self.tell() > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("rows_of_a_group", [1, 100_000])
def test_a_full_disk_is_named_and_nothing_stays(
    folder: DeltaFolder, monkeypatch: pytest.MonkeyPatch, rows_of_a_group: int
) -> None:
    """The disk is full when a group of rows is written, or when the file is completed."""
    transaction = start(started(folder), epoch(1))
    opened = Path.open

    def create(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode != "x+b":
            return opened(path, mode, *arguments, **options)
        return io.BufferedRandom(Full(path, mode))

    monkeypatch.setattr(Path, "open", create)
    monkeypatch.setattr("epochal.backends.file_formats.ROW_GROUP", rows_of_a_group)

    def write() -> None:
        transaction.write(batch(rows(*range(2000))))
        assert rows_of_a_group > 1, "the first group has been written"
        transaction.pre_commit()

    with pytest.raises(StorageFull, match=r"Sink 'out' \(delta:.*could not write a file: no space is left in .*orders"):
        write()
    transaction.discard()
    assert folder.leftovers() == []
