"""Compaction of the table of a Delta sink, beside its commits: no row is lost or repeated, and the marker stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.backends.files import FilesBackend
from epochal.contracts.backend import Buffering, SinkPlace
from epochal.errors import InvalidInput, SinkError
from epochal.faults import FaultPoint, injected
from epochal.snapshots.store import SnapshotStore
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.delta_tables import DeltaFolder, opened, started


def commit(sink: DeltaSink, decided: DecidedEpochs, *numbers: int) -> None:
    for number in numbers:
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])


def marker(folder: DeltaFolder) -> int | None:
    return opened(folder).transaction_version(f"{epoch(1).branch}/out")


def test_small_files_are_replaced_by_one_and_the_marker_stays(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink, notes = started(folder), list[str]()
    commit(sink, decided, 1, 2, 3)
    done = sink.optimize(notes.append)
    assert (done.files_removed, done.files_added, done.version) == (3, 1, opened(folder).version())
    assert 0 < done.bytes_added < done.bytes_removed
    assert notes == ["compacting: 3 of 3 files are smaller than 256 MiB"]
    assert len(opened(folder).file_uris()) == 1
    assert marker(folder) == 3
    decided.commit(sink, epoch(3), [])
    commit(sink, decided, 4)
    assert same(folder.visible(), rows(1, 2, 3, 4))


def test_a_compacted_table_is_left_as_it_is(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    commit(sink, decided, 1, 2)
    sink.optimize(lambda _: None)
    version = opened(folder).version()
    done = sink.optimize(lambda _: None)
    assert (done.files_removed, done.files_added, done.version) == (0, 0, None)
    assert opened(folder).version() == version


def test_files_of_the_sinks_target_size_are_not_rewritten(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = DeltaSink(SinkPlace("out"), DeltaAddress(str(folder.path)), file_bytes=100)
    sink.check(SCHEMA)
    sink.recover(epoch(0))
    commit(sink, decided, 1, 2)
    assert sink.optimize(lambda _: None).files_removed == 0


def test_an_epoch_is_committed_while_files_are_compacted(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    """The note follows the read of the version that the compaction is based on."""
    sink = started(folder)
    commit(sink, decided, 1, 2)
    done = sink.optimize(lambda _: commit(sink, decided, 3, 4))
    assert (done.files_removed, done.version) == (2, opened(folder).version())
    assert marker(folder) == 4
    assert same(folder.visible(), rows(1, 2, 3, 4))


def test_a_compaction_lands_between_the_marker_and_the_commit(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    commit(sink, decided, 1, 2)
    landed = 0

    def compact(point: FaultPoint, number: int | None) -> None:
        nonlocal landed
        if point.name == "E5.table.loaded" and not landed:
            landed = sink.optimize(lambda _: None).files_removed

    handle = pre_commit(sink, epoch(3), rows(3))
    with injected(compact):
        decided.commit(sink, epoch(3), [handle])
    assert landed == 2
    assert marker(folder) == 3
    assert same(folder.visible(), rows(1, 2, 3))


def test_a_table_with_partitions_is_compacted_within_each(tmp_path: Path, decided: DecidedEpochs) -> None:
    folder = DeltaFolder(tmp_path / "orders", ["name"])
    sink = started(folder)
    for number in (1, 2):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number, number + 10))])
    files = len(opened(folder).file_uris())
    partitions = len({row["name"] for row in folder.visible()})
    done = sink.optimize(lambda _: None)
    assert len(opened(folder).file_uris()) == files - done.files_removed + done.files_added >= partitions
    assert same(folder.visible(), rows(1, 11, 2, 12))


class TestKeys:
    """A sink with keys replaces files, with which a compaction of them conflicts."""

    @pytest.fixture
    def sink(self, folder: DeltaFolder, decided: DecidedEpochs, tmp_path: Path) -> DeltaSink:
        place = SinkPlace("out", SnapshotStore(str(tmp_path / "store")))
        sink = DeltaSink(place, DeltaAddress(str(folder.path)), buffering=Buffering(60.0), keys=[SCHEMA.names[0]])
        sink.check(SCHEMA)
        sink.recover(epoch(0))
        commit(sink, decided, 1, 2)
        return sink

    @pytest.fixture
    def numbers(self) -> Iterator[int]:
        return count(3)

    def replace(self, sink: DeltaSink, decided: DecidedEpochs, number: int) -> None:
        """An epoch that replaces the row of the first one."""
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(1))])

    def test_a_compaction_of_files_that_were_replaced_is_planned_again(
        self, sink: DeltaSink, folder: DeltaFolder, decided: DecidedEpochs, numbers: Iterator[int]
    ) -> None:
        notes = list[str]()

        def replaced_once(note: str) -> None:
            notes.append(note)
            if len(notes) == 1:
                self.replace(sink, decided, next(numbers))

        done = sink.optimize(replaced_once)
        assert len(notes) == 2 and done.files_removed == 2
        assert same(folder.visible(), rows(1, 2))

    def test_a_compaction_gives_way_to_epochs(
        self, sink: DeltaSink, folder: DeltaFolder, decided: DecidedEpochs, numbers: Iterator[int]
    ) -> None:
        with pytest.raises(SinkError, match=r"could not be compacted.*3 times.*longer `commit_every`"):
            sink.optimize(lambda _: self.replace(sink, decided, next(numbers)))
        assert marker(folder) == 5
        assert same(folder.visible(), rows(1, 2))

    def test_a_compaction_lands_before_a_merge(
        self, sink: DeltaSink, folder: DeltaFolder, decided: DecidedEpochs
    ) -> None:
        landed = False

        def compact(point: FaultPoint, number: int | None) -> None:
            nonlocal landed
            if point.name == "E5.table.loaded" and not landed:
                landed = sink.optimize(lambda _: None).files_removed > 0

        with injected(compact):
            self.replace(sink, decided, 3)
        assert landed
        assert same(folder.visible(), rows(1, 2))


def test_a_missing_table_is_named(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    shutil.rmtree(folder.path)
    with pytest.raises(SinkError, match=r"Sink 'out' \(delta:.*the table does not exist any more. Restore it"):
        sink.optimize(lambda _: None)


def test_a_lost_file_of_the_table_is_an_error_of_the_sink(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    commit(sink, decided, 1, 2)
    Path(opened(folder).file_uris()[0].removeprefix("file://")).unlink()
    with pytest.raises(SinkError, match=r"Sink 'out' \(delta:.*could not compact its files"):
        sink.optimize(lambda _: None)
    assert opened(folder).version() == 2


def test_the_version_tells_readers_of_changes_that_no_row_changed(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    """``delta.source`` skips such versions."""
    sink = started(folder)
    commit(sink, decided, 1, 2)
    version = sink.optimize(lambda _: None).version
    log = (folder.path / "_delta_log" / f"{version:020}.json").read_text()
    actions = [action for line in log.splitlines() for action in json.loads(line).items()]
    assert {value["dataChange"] for kind, value in actions if kind in ("add", "remove")} == {False}


def test_other_sinks_have_nothing_to_compact(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a Delta table"):
        FilesBackend(str(tmp_path)).optimize(lambda _: None)


def test_rows_of_other_writers_stay(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    commit(sink, decided, 1)
    write_deltalake(str(folder.path), pa.Table.from_pylist(rows(7), SCHEMA), mode="append")
    assert sink.optimize(lambda _: None).files_removed == 2
    assert same(folder.visible(), rows(1, 7))
    assert DeltaTable(str(folder.path)).version() == 3
