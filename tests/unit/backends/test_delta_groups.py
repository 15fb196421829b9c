"""The Delta sink that collects epochs, and the one that replaces rows by keys: both commit logs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.contracts.backend import DecidedEpoch, SinkPlace
from epochal.errors import RowRejected, SchemaError, SinkError
from epochal.faults import FaultPoint, injected
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.delta_tables import DeltaFolder, opened, started


def collected(sink: DeltaSink, *numbers: int) -> list[DecidedEpoch]:
    """Epochs whose rows are in logs."""
    return [
        DecidedEpoch(epoch(number), (pre_commit(sink, epoch(number), rows(number)),), number - 1 or None)
        for number in numbers
    ]


def test_collected_epochs_become_one_version_with_one_file(tmp_path: Path) -> None:
    folder = DeltaFolder(tmp_path / "orders", collects=True)
    sink = started(folder)
    group = collected(sink, 1, 2, 3)
    assert folder.visible() == []
    before = opened(folder).version()
    sink.commit_decided(group)
    assert opened(folder).version() == before + 1
    assert len(opened(folder).file_uris()) == 1
    assert same(folder.visible(), rows(1, 2, 3))
    assert folder.leftovers() == []


def test_another_driver_commits_another_group(tmp_path: Path) -> None:
    """After a crash, the next attempt reads the marker and takes whatever follows."""
    folder = DeltaFolder(tmp_path / "orders", collects=True)
    sink, other = started(folder), started(folder, attempt=2)
    group = collected(sink, 1, 2, 3, 4)
    raced = False

    def race(point: FaultPoint, number: int | None) -> None:
        nonlocal raced
        if point.name == "E5.table.merged" and not raced:
            raced = True
            other.commit_decided(group[:2])

    with injected(race):
        sink.commit_decided(group)
    assert raced
    assert same(folder.visible(), rows(1, 2, 3, 4))


def test_a_sweep_spares_merged_files(tmp_path: Path) -> None:
    """R4 sweeps the files of decided epochs that no handle names: the merged ones are in a version."""
    folder = DeltaFolder(tmp_path / "orders", collects=True)
    sink = started(folder)
    group = collected(sink, 1, 2)
    sink.commit_decided(group)
    for each in group:
        started(folder, attempt=2, at=2).sweep(epoch(each.epoch, attempt=2), each.handles)
    assert same(folder.visible(), rows(1, 2))


def test_epochs_with_files_and_with_logs_are_committed_together(tmp_path: Path) -> None:
    """``commit_every`` was added or removed by an upgrade while epochs waited."""
    folder = DeltaFolder(tmp_path / "orders", collects=True)
    sink, plain = started(folder), started(DeltaFolder(folder.path))
    handle = pre_commit(plain, epoch(1), rows(1))
    group = [DecidedEpoch(epoch(1), (handle,)), *collected(sink, 2)]
    sink.commit_decided(group)
    assert same(folder.visible(), rows(1, 2))


def keyed(tmp_path: Path, partition_by: Sequence[str] = ()) -> tuple[DeltaFolder, DeltaSink]:
    folder = DeltaFolder(tmp_path / "orders", partition_by, collects=True)
    place = SinkPlace("out", folder.store)
    sink = DeltaSink(place, DeltaAddress(str(folder.path)), partition_by, keys=["id"])
    sink.check(SCHEMA)
    sink.recover(epoch(0))
    return folder, sink


def named(*pairs: tuple[int | None, str | None]) -> list[dict[str, Any]]:
    return [{"id": id, "name": name} for id, name in pairs]


@pytest.mark.parametrize("partition_by", [[], ["id"]])
def test_rows_replace_others_by_keys(tmp_path: Path, decided: DecidedEpochs, partition_by: list[str]) -> None:
    folder, sink = keyed(tmp_path, partition_by)
    decided.commit(sink, epoch(1), [pre_commit(sink, epoch(1), named((1, "a"), (2, "b"), (1, "c")))])
    assert same(folder.visible(), named((1, "c"), (2, "b")))
    handle = pre_commit(sink, epoch(2), named((2, None), (3, "d")))
    decided.commit(sink, epoch(2), [handle])
    assert same(folder.visible(), named((1, "c"), (2, None), (3, "d")))
    version = opened(folder).version()
    decided.commit(sink, epoch(2), [handle])
    assert opened(folder).version() == version


def test_upserts_beside_another_writer(tmp_path: Path, decided: DecidedEpochs) -> None:
    folder, sink = keyed(tmp_path)
    handle = pre_commit(sink, epoch(1), named((1, "a"), (2, "b")))
    others = 0

    def write(point: FaultPoint, number: int | None) -> None:
        nonlocal others
        if point.name == "E5.table.loaded" and others < 2:
            others += 1
            write_deltalake(str(folder.path), pa.Table.from_pylist(named((others, "old")), SCHEMA), mode="append")

    with injected(write):
        decided.commit(sink, epoch(1), [handle])
    assert same(folder.visible(), named((1, "a"), (2, "b")))


def test_upserts_match_a_dictionary(tmp_path: Path, run_seed: int) -> None:
    seed = random.Random(run_seed)
    folder, sink = keyed(tmp_path)
    expected: dict[int, str] = {}
    number, previous = 0, None
    for _ in range(6):
        group = []
        for _ in range(seed.randint(1, 3)):
            number += 1
            found = [(seed.randrange(12), f"{number}-{place}") for place in range(seed.randrange(5))]
            expected |= dict(found)
            part = DecidedEpoch(epoch(number), (pre_commit(sink, epoch(number), named(*found)),), previous)
            previous = number if part.rows else previous
            group.append(part)
        sink.commit_decided(group)
        assert same(folder.visible(), named(*expected.items()))


def test_keys_must_have_values(tmp_path: Path) -> None:
    _, sink = keyed(tmp_path)
    with pytest.raises(RowRejected, match="no value for the key 'id'"):
        pre_commit(sink, epoch(1), named((None, "a")))


def test_an_append_only_table_refuses_keys(tmp_path: Path) -> None:
    folder, sink = keyed(tmp_path)
    opened(folder).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(SinkError, match=r"the table has delta\.appendOnly"):
        sink.check(SCHEMA)


def test_keys_must_be_columns(tmp_path: Path) -> None:
    sink = DeltaSink(SinkPlace("out"), DeltaAddress(str(tmp_path / "orders")), keys=["code"])
    with pytest.raises(SchemaError, match="the keys code are not columns of the rows: id, name"):
        sink.check(SCHEMA)
