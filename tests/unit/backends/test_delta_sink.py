"""The Delta sink: what it refuses, what stops it, and that nothing is written twice or lost beside other writers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from epochal.backends.delta_lake.address import UNSAFE, DeltaAddress
from epochal.backends.delta_lake.schema import _seconds
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.contracts.backend import DecidedEpoch, SinkPlace
from epochal.errors import EpochalError, RowRejected, SchemaError, SinkAhead, SinkError
from epochal.faults import FaultPoint, injected
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.delta_tables import DeltaFolder, opened, started

Change = Callable[[DeltaTable], None]


def test_another_writer_commits_between_marker_and_commit(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    handle = pre_commit(sink, epoch(1), rows(1))
    others = 0

    def write(point: FaultPoint, number: int | None) -> None:
        nonlocal others
        if point.name == "E5.table.loaded" and others < 3:
            others += 1
            write_deltalake(str(folder.path), pa.Table.from_pylist(rows(100 + others), SCHEMA), mode="append")

    with injected(write):
        decided.commit(sink, epoch(1), [handle])
    assert others == 3
    assert same(folder.visible(), rows(1, 101, 102, 103))


def test_two_drivers_commit_the_same_epoch(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    first, second = started(folder), started(folder, attempt=2)
    handle = pre_commit(first, epoch(1), rows(1, 2))
    raced = False

    def race(point: FaultPoint, number: int | None) -> None:
        nonlocal raced
        if point.name == "E5.table.loaded" and not raced:
            raced = True
            decided.commit(second, epoch(1), [handle])

    with injected(race):
        decided.commit(first, epoch(1), [handle])
    assert raced
    assert same(folder.visible(), rows(1, 2))


def test_files_are_compacted_and_vacuumed_between_epochs(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    for number in (1, 2):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    opened(folder).optimize.compact()
    opened(folder).vacuum(0, dry_run=False, enforce_retention_duration=False)
    decided.commit(sink, epoch(3), [pre_commit(sink, epoch(3), rows(3))])
    decided.commit(sink, epoch(2), [])
    assert same(folder.visible(), rows(1, 2, 3))


def test_a_vacuum_that_deletes_staged_files_stops_the_sink(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    handle = pre_commit(sink, epoch(1), rows(1))
    copy = folder.path.with_name("copy")
    shutil.copytree(folder.path, copy)
    opened(folder).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(
        SinkError, match=r"has lost 1 of 1 files of epoch 1.*VACUUM.*`epochal transaction abort application out 1`"
    ):
        decided.commit(sink, epoch(1), [handle])
    shutil.copytree(copy, folder.path, dirs_exist_ok=True)
    decided.commit(sink, epoch(1), [handle])
    assert same(folder.visible(), rows(1))


def test_an_epoch_can_be_given_up(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    decided.commit(sink, epoch(1), [pre_commit(sink, epoch(1), rows(1))])
    handle = pre_commit(sink, epoch(2), rows(2))
    sink.commit_decided([DecidedEpoch(epoch(2), (), 1, given_up=True)])
    sink.abort(epoch(2), [handle])
    started(folder, attempt=2, at=2).commit_decided([DecidedEpoch(epoch(2), (handle,), 1)])
    sink.commit_decided([DecidedEpoch(epoch(3), (pre_commit(sink, epoch(3), rows(3)),), 2)])
    assert same(folder.visible(), rows(1, 3))
    assert len(folder.leftovers()) == 1  # VACUUM removes it: a version could name a file of a decided epoch


def test_an_epoch_that_was_committed_before_it_is_given_up_stays(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    handle = pre_commit(sink, epoch(1), rows(1))
    decided.commit(sink, epoch(1), [handle])
    sink.commit_decided([DecidedEpoch(epoch(1), (), None, given_up=True)])
    sink.abort(epoch(1), [handle])
    assert same(folder.visible(), rows(1))


def test_restoring_an_earlier_version_does_not_write_epochs_again(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    for number in (1, 2):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    opened(folder).restore(1)
    decided.commit(sink, epoch(2), [])
    decided.commit(sink, epoch(3), [pre_commit(sink, epoch(3), rows(3))])
    assert same(folder.visible(), rows(1, 3))


def test_a_copy_of_an_earlier_table_stops_the_sink(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    decided.commit(sink, epoch(1), [pre_commit(sink, epoch(1), rows(1))])
    copy = folder.path.with_name("copy")
    shutil.copytree(folder.path, copy)
    decided.commit(sink, epoch(2), [pre_commit(sink, epoch(2), rows(2))])
    shutil.rmtree(folder.path)
    shutil.copytree(copy, folder.path)
    handle = pre_commit(sink, epoch(3), rows(3))
    with pytest.raises(
        SinkError,
        match=r"cannot commit epoch 3: it shows epoch 1.*epoch 2 was committed.*epochal rollback application --epoch 1",
    ):
        decided.commit(sink, epoch(3), [handle])
    assert same(folder.visible(), rows(1))


def test_a_table_that_was_deleted_stops_the_sink(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    handle = pre_commit(sink, epoch(1), rows(1))
    shutil.rmtree(folder.path)
    with pytest.raises(SinkError, match="the table does not exist any more"):
        decided.commit(sink, epoch(1), [handle])


def test_applications_that_share_a_table_have_markers_of_their_own(folder: DeltaFolder) -> None:
    one, other = started(folder), DeltaSink(SinkPlace("other"), DeltaAddress(str(folder.path)))
    other.check(SCHEMA)
    other.recover(epoch(0))
    one.commit_decided([DecidedEpoch(epoch(5), (pre_commit(one, epoch(5), rows(5)),))])
    other.commit_decided([DecidedEpoch(epoch(2), (pre_commit(other, epoch(2), rows(2)),))])
    assert same(folder.visible(), rows(2, 5))
    with pytest.raises(SinkAhead):
        started(folder, attempt=2, at=4)


CONSTRAINTS: dict[str, tuple[Change, str]] = {
    "check": (lambda table: table.alter.add_constraint({"positive": "id > 0"}), "the CHECK constraint positive"),
    "forgets": (
        lambda table: table.alter.set_table_properties(
            {"delta.setTransactionRetentionDuration": "interval 1 days"}, raise_if_not_exists=False
        ),
        "delta.setTransactionRetentionDuration",
    ),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_table_that_gets_a_constraint_stops_the_sink(folder: DeltaFolder, decided: DecidedEpochs, name: str) -> None:
    change, message = CONSTRAINTS[name]
    sink = started(folder)
    handle = pre_commit(sink, epoch(1), rows(1))
    change(opened(folder))
    with pytest.raises(SinkError, match=message):
        decided.commit(sink, epoch(1), [handle])
    with pytest.raises(SinkError, match=message):
        folder.make().check(SCHEMA)
    assert folder.visible() == []


COLUMNS = {
    "generated": ({"delta.generationExpression": "id + 1"}, "is generated"),
    "identity": ({"delta.identity.start": 1}, "is an identity column"),
    "invariant": ({"delta.invariants": '{"expression":{"expression":"id > 3"}}'}, "is restricted by an invariant"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_tables_whose_columns_need_work_at_each_write_are_refused(folder: DeltaFolder, name: str) -> None:
    metadata, message = COLUMNS[name]
    started(folder)
    log = folder.path / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            schema["fields"][0]["metadata"] = metadata
            line["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(SinkError, match=message):
        folder.make().check(SCHEMA)


def evolved(table: DeltaTable, columns: Sequence[tuple[str, str, bool]]) -> None:
    """Replace the columns of the table, as another engine does."""
    fields = [Field(name, PrimitiveType(type), nullable=nullable) for name, type, nullable in columns]
    empty = pa.schema(Schema(fields)).empty_table()
    write_deltalake(table, empty, mode="overwrite", schema_mode="overwrite")


EVOLUTIONS = {
    "dropped": ([("id", "long", True)], "the table has no column 'name'"),
    "retyped": ([("id", "string", True), ("name", "string", True)], "column 'id' is long, and in the table string"),
    "required": (
        [("id", "long", True), ("name", "string", True), ("day", "date", False)],
        "column 'day', which is NOT NULL, is missing",
    ),
}


@pytest.mark.parametrize("name", EVOLUTIONS)
def test_a_table_whose_columns_change_stops_the_sink(folder: DeltaFolder, decided: DecidedEpochs, name: str) -> None:
    columns, message = EVOLUTIONS[name]
    sink = started(folder)
    handle = pre_commit(sink, epoch(1), rows(1))
    evolved(opened(folder), columns)
    with pytest.raises(SinkError, match=f"changed after epoch 1 was computed.*{message}"):
        decided.commit(sink, epoch(1), [handle])
    assert folder.visible() == []
    evolved(opened(folder), [("id", "long", True), ("name", "string", True)])
    decided.commit(sink, epoch(1), [handle])
    assert same(folder.visible(), rows(1))


def test_a_table_may_gain_columns(folder: DeltaFolder, decided: DecidedEpochs) -> None:
    sink = started(folder)
    handle = pre_commit(sink, epoch(1), rows(1))
    opened(folder).alter.add_columns([Field("day", PrimitiveType("date"), nullable=True)])
    decided.commit(sink, epoch(1), [handle])
    assert folder.visible() == [{**row, "day": None} for row in rows(1)]


def test_a_column_that_is_not_null_is_checked_by_tasks(folder: DeltaFolder) -> None:
    fields = [Field("id", PrimitiveType("long"), nullable=True), Field("name", PrimitiveType("string"), nullable=False)]
    DeltaTable.create(str(folder.path), Schema(fields))
    sink = started(folder)
    with pytest.raises(RowRejected, match=r"a row has no value for column 'name', which is NOT NULL"):
        pre_commit(sink, epoch(1), rows(5))


@pytest.mark.parametrize(
    ("schema", "partition_by", "message"),
    [
        (SCHEMA, ["day"], "is partitioned by 'day', which is not a column"),
        (pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]), ["at"], "whose type is timestamp"),
        (pa.schema([("id", pa.int64())]), ["id"], "no column besides those by which it is partitioned"),
        (pa.schema([("id", pa.duration("us"))]), [], "cannot write these columns"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, schema: pa.Schema, partition_by: list[str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        DeltaFolder(tmp_path / "orders", partition_by).make().check(schema)


def test_an_empty_text_is_no_partition(tmp_path: Path) -> None:
    folder = DeltaFolder(tmp_path / "orders", ["name"])
    sink = started(folder)
    with pytest.raises(RowRejected, match="empty text in 'name'"):
        pre_commit(sink, epoch(1), [{"id": 1, "name": ""}])


def test_other_partitions_than_those_of_the_table_are_refused(folder: DeltaFolder) -> None:
    started(folder)
    with pytest.raises(SinkError, match="partition_by is name, and the table is partitioned by nothing"):
        DeltaFolder(folder.path, ["name"]).make().check(SCHEMA)


def test_writes_without_a_condition_are_refused(folder: DeltaFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UNSAFE, "true")
    with pytest.raises(SinkError, match=f"{UNSAFE} is set"):
        folder.make().check(SCHEMA)


def test_errors_name_sink_and_table(tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("not a folder")
    with pytest.raises(EpochalError, match=r"Sink 'out' \(delta:.*orders\)"):
        started(DeltaFolder(tmp_path / "orders"))


def test_a_handle_without_rows_names_no_files(folder: DeltaFolder) -> None:
    handle = pre_commit(started(folder), epoch(1), [])
    assert (handle.rows, handle.payload) == (0, {})
    version = opened(folder).version()
    started(folder).commit_decided([replace(DecidedEpoch(epoch(1), (handle,)))])
    assert opened(folder).version() == version


@pytest.mark.parametrize(
    ("retention", "warned"),
    [
        ("interval 6 hours", True),
        ("interval 1 day", False),
        ("interval 23 hours 59 minutes", True),
        ("interval 0 days 24 hours", False),
        ("interval 1 week", False),
        (None, False),
    ],
)
def test_a_short_retention_of_deleted_files_is_a_warning(
    folder: DeltaFolder, retention: str | None, warned: bool
) -> None:
    started(folder)
    if retention is not None:
        opened(folder).alter.set_table_properties({"delta.deletedFileRetentionDuration": retention})
    warnings = folder.make().warnings()
    assert len(warnings) == warned
    for warning in warnings:
        assert f"delta.deletedFileRetentionDuration of the table is '{retention}'" in warning
        assert "Set it to at least 'interval 24 hours'." in warning


def test_a_missing_table_has_no_warnings(folder: DeltaFolder) -> None:
    assert folder.make().warnings() == []


@pytest.mark.parametrize("interval", ["", "interval", "interval soon", "interval 1 month", "interval 3", "1"])
def test_an_interval_of_another_form_has_no_length(interval: str) -> None:
    assert _seconds(interval) is None
