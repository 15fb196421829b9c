"""The write-ahead log: order, checksums, removal and sweep."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from epochal.backends import write_ahead_log
from epochal.backends.write_ahead_log import WriteAheadLog, has_log, of_shard, shards_of
from epochal.contracts.backend import SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import FileCorrupt, FileMissing, SinkError
from epochal.snapshots import task_files
from epochal.snapshots.packs import Pack, carried_by
from epochal.snapshots.store import SnapshotStore

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.fixture
def log(tmp_path: Path) -> WriteAheadLog:
    return WriteAheadLog(SinkPlace("out", SnapshotStore(str(tmp_path))))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every segment is too large for a handle."""
    monkeypatch.setattr(task_files, "TASK_BYTES", 0)


def scope(epoch: int = 1, attempt: int = 1) -> EpochScope:
    return EpochScope("application", EpochKey("main", epoch), attempt, None)


def written(log: WriteAheadLog, *numbers: int, subtask: int = 0, at: EpochScope | None = None) -> Handle:
    writer = log.open(TaskScope(at or scope(), "out", subtask), SCHEMA)
    for number in numbers:
        writer.write(pa.RecordBatch.from_pylist([{"n": number, "text": f"row {number}"}], schema=SCHEMA))
    handle = writer.finish()
    return Handle.decode(handle.encode()).model_copy(update={"carried": handle.carried})


def numbers(log: WriteAheadLog, *handles: Handle) -> list[int]:
    return [number for batch in log.read(scope(), handles) for number in batch.column("n").to_pylist()]


@pytest.mark.usefixtures("large")
def test_batches_are_read_by_subtask_and_in_order(log: WriteAheadLog) -> None:
    second, first = written(log, 30, 10, 20, subtask=1), written(log, 3, 1, 2)
    assert numbers(log, second, first) == [3, 1, 2, 30, 10, 20]
    assert (first.rows, first.subtask) == (3, 0)


def test_a_small_log_is_read_from_the_pack_and_leaves_no_file(log: WriteAheadLog) -> None:
    first, second = written(log, 1, 2), written(log, 3, subtask=1)
    assert log.leftovers() == []
    pack = Pack.of(scope().key, 1, carried_by([first, second]))
    log.store.write(pack.path, pack.beginning)
    handles = [Handle.decode(pack.placed(handle).encode()) for handle in (second, first)]
    assert numbers(log, *handles) == [1, 2, 3]
    log.remove(scope(), [first, *handles])
    assert numbers(log, *handles) == [1, 2, 3]  # a pack is no part of the log
    data = bytearray(log.store.read(pack.path))
    data[len(pack.files[next(iter(pack.files))]) + 5] ^= 1
    log.store.write(pack.path, bytes(data))
    with pytest.raises(FileCorrupt, match=r"\.arrow in .*\.pack, of the log of sink 'out', epoch main/1"):
        numbers(log, handles[0])


@pytest.mark.usefixtures("large")
def test_a_large_log_keeps_its_order_over_segments(log: WriteAheadLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead_log, "SEGMENT_BYTES", 1)
    handle = written(log, *range(20))
    assert len(handle.payload["segments"]) == 20
    assert numbers(log, handle) == list(range(20))


@pytest.mark.parametrize("in_pack", [True, False])
def test_a_log_of_several_shards_is_read_by_shard(
    log: WriteAheadLog, monkeypatch: pytest.MonkeyPatch, in_pack: bool
) -> None:
    if not in_pack:
        monkeypatch.setattr(task_files, "TASK_BYTES", 0)
    monkeypatch.setattr(write_ahead_log, "SEGMENT_BYTES", 1)
    writer = log.open(TaskScope(scope(), "out", 0), SCHEMA, shards=3)
    for number in range(12):
        row = {"n": number, "text": f"row {number}"}
        writer.write(pa.RecordBatch.from_pylist([row], schema=SCHEMA), shard=(0, 2)[number % 2])
    handle = writer.finish()
    assert shards_of([handle, written(log)]) == 3
    if in_pack:
        pack = Pack.of(scope().key, 1, carried_by([handle]))
        log.store.write(pack.path, pack.beginning)
        assert numbers(log, of_shard(handle, 2)) == [1, 3, 5, 7, 9, 11]  # from the handle, before the pack is read
        handle = pack.placed(handle)
    handle = Handle.decode(handle.encode())
    divided = [of_shard(handle, shard) for shard in range(3)]
    assert [numbers(log, each) for each in divided] == [[0, 2, 4, 6, 8, 10], [], [1, 3, 5, 7, 9, 11]]
    assert [each.rows for each in divided] == [6, 0, 6]
    assert [has_log(each) for each in divided] == [True, False, True]
    log.sweep(scope(), [handle])
    assert len(log.leftovers()) == (0 if in_pack else 12)
    log.remove(scope(), [handle])
    assert log.leftovers() == []


def test_a_task_without_rows_stores_nothing(log: WriteAheadLog) -> None:
    handle = written(log)
    assert (handle.payload, handle.rows, handle.bytes, log.leftovers()) == ({}, 0, 0, [])
    assert numbers(log, handle) == []


@pytest.mark.usefixtures("large")
def test_a_damaged_segment_is_reported_before_any_row_is_read(log: WriteAheadLog, tmp_path: Path) -> None:
    handle = written(log, 1, 2, 3)
    (path,) = log.leftovers()
    data = bytearray((tmp_path / path).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / path).write_bytes(data)
    with pytest.raises(FileCorrupt, match="log of sink 'out', epoch main/1"):
        numbers(log, handle)


@pytest.mark.usefixtures("large")
def test_a_missing_segment_is_named(log: WriteAheadLog, tmp_path: Path) -> None:
    handle = written(log, 1)
    (path,) = log.leftovers()
    (tmp_path / path).unlink()
    with pytest.raises(FileMissing, match=r"log of sink 'out', epoch main/1, is missing"):
        numbers(log, handle)


@pytest.mark.usefixtures("large")
def test_remove_is_idempotent(log: WriteAheadLog) -> None:
    handle = written(log, 1, 2)
    log.remove(scope(), [handle])
    log.remove(scope(), [handle])
    assert log.leftovers() == []


@pytest.mark.usefixtures("large")
def test_sweep_keeps_given_handles_other_epochs_and_later_attempts(log: WriteAheadLog) -> None:
    kept, _lost = written(log, 1), written(log, 2)
    other, later = written(log, 3, at=scope(epoch=2)), written(log, 4, at=scope(attempt=2))
    assert log.sweep(scope(), [kept]) == 1
    assert log.sweep(scope(), [kept]) == 0
    assert numbers(log, kept) == [1]
    assert len(log.leftovers()) == 3
    log.remove(scope(epoch=2), [other])
    log.remove(scope(), [kept, later])
    assert log.leftovers() == []


def test_a_sink_made_for_analysis_cannot_write() -> None:
    with pytest.raises(SinkError, match="without a snapshot store"):
        WriteAheadLog(SinkPlace("out")).open(TaskScope(scope(), "out", 0), SCHEMA)
