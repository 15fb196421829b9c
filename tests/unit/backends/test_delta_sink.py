"""The Delta sink: what it refuses, what stops it, and that nothing is written twice or lost beside other writers."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from epochal.backends.delta_lake.address import UNSAFE, DeltaAddress
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.contracts.backend import DecidedEpoch, SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import TaskScope
from epochal.errors import EpochalError, SchemaError, SinkAhead, SinkError
from epochal.faults import FaultPoint, injected
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.delta_tables import DeltaFolder

Change = Callable[[DeltaTable], None]


@pytest.fixture
def folder(tmp_path: Path) -> DeltaFolder:
    return DeltaFolder(tmp_path / "orders")


@pytest.fixture
def decided() -> DecidedEpochs:
    return DecidedEpochs()


def started(folder: DeltaFolder, attempt: int = 1, at: int = 0) -> DeltaSink:
    sink = folder.make()
    sink.check(SCHEMA)
    sink.recover(epoch(at, attempt))
    return sink


def opened(folder: DeltaFolder) -> DeltaTable:
    table = folder.table()
    assert table is not None
    return table


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
    with pytest.raises(SchemaError, match=r"1 rows have no value for column 'name', which is NOT NULL"):
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
    with pytest.raises(SchemaError, match="empty text in 'name'"):
        pre_commit(sink, epoch(1), [{"id": 1, "name": ""}])


def test_other_partitions_than_those_of_the_table_are_refused(folder: DeltaFolder) -> None:
    started(folder)
    with pytest.raises(SinkError, match="partition_by is name, and the table is partitioned by nothing"):
        DeltaFolder(folder.path, ["name"]).make().check(SCHEMA)


def test_writes_without_a_condition_are_refused(folder: DeltaFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UNSAFE, "true")
    with pytest.raises(SinkError, match=f"{UNSAFE} is set"):
        folder.make().check(SCHEMA)


def written(sink: DeltaSink, rows: pa.Table) -> None:
    """Write the rows as one epoch, in small batches."""
    sink.check(rows.schema)
    sink.recover(epoch(0))
    transaction = sink.start(TaskScope(epoch(1), "out", 0))
    for batch in rows.to_batches(max_chunksize=7):
        transaction.write(batch)
    handle = transaction.pre_commit()
    sink.commit_decided([DecidedEpoch(epoch(1), (Handle.decode(handle.encode()),))])


def values(seed: random.Random, number: int) -> pa.Table:
    """Values of all types for which the log has bounds, and edges of their ranges."""

    def chosen(edges: Sequence[Any], draw: Callable[[], Any]) -> list[Any]:
        return [seed.choice(edges) if seed.random() < 0.2 else draw() for _ in range(number)]

    def moment() -> datetime:
        return datetime.fromtimestamp(seed.randrange(-(10**9), 10**9) + seed.random(), UTC)

    edges = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), None]
    moments = chosen(edges, moment)
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "big": (chosen([None, 2**63 - 1, -(2**63)], lambda: seed.randrange(-100, 100)), pa.int64()),
        "tiny": (chosen([None, 127, -128], lambda: seed.randrange(-9, 9)), pa.int8()),
        "double": (chosen([None, float("nan"), float("inf"), -0.0], lambda: seed.uniform(-9, 9)), pa.float64()),
        "single": (chosen([None, float("-inf")], lambda: seed.uniform(-9, 9)), pa.float32()),
        "text": (
            chosen([None, "", "é漢🎉", "x" * 100, "\U0010ffff" * 40], lambda: chr(97 + seed.randrange(26))),
            pa.string(),
        ),
        "day": (chosen([None, date(1, 1, 1), date(9999, 12, 31)], lambda: moment().date()), pa.date32()),
        "at": (moments, pa.timestamp("us", "UTC")),
        "local": ([None if each is None else each.replace(tzinfo=None) for each in moments], pa.timestamp("us")),
        "money": (chosen([None], lambda: Decimal(seed.randrange(10**9)).scaleb(-2)), pa.decimal128(20, 2)),
        "price": (chosen([None], lambda: Decimal(seed.randrange(10**9)).scaleb(-2)), pa.decimal128(12, 2)),
        "flag": (chosen([None, True, False], lambda: True), pa.bool_()),
        "bytes": (chosen([None, b"", b"\xff"], lambda: seed.randbytes(3)), pa.binary()),
        "list": (chosen([None, []], lambda: [1, None]), pa.list_(pa.int32())),
        "struct": (chosen([None], lambda: {"a": 1, "b": None}), pa.struct([("a", pa.int64()), ("b", pa.string())])),
        "map": (chosen([None], lambda: [("k", 1)]), pa.map_(pa.string(), pa.int64())),
    }
    arrays = {name: pa.array(found, type) for name, (found, type) in columns.items()}
    return pa.table({"id": pa.array(range(number), pa.int64()), **arrays})


def test_values_are_read_back_unchanged(folder: DeltaFolder, run_seed: int) -> None:
    found = values(random.Random(run_seed), 300)
    written(folder.make(), found)
    read = opened(folder).to_pyarrow_table().sort_by("id").cast(found.schema)
    assert repr(read.to_pylist()) == repr(found.to_pylist())  # NaN is not equal to itself


@pytest.mark.parametrize("column", ["text", "big", "tiny", "day", "flag"])
def test_partition_values_are_read_back_unchanged(tmp_path: Path, run_seed: int, column: str) -> None:
    folder = DeltaFolder(tmp_path / "orders", [column])
    found = values(random.Random(run_seed), 60).select(["id", "double", column])
    if column == "text":
        found = found.filter(pc.fill_null(pc.not_equal(found["text"], ""), True))
    written(folder.make(), found)
    read = opened(folder).to_pyarrow_table(columns=found.column_names).sort_by("id").cast(found.schema)
    assert repr(read.to_pylist()) == repr(found.to_pylist())


def test_bounds_in_the_log_contain_all_values(tmp_path: Path, run_seed: int) -> None:
    """Readers skip a file by its bounds and by its number of nulls."""
    seed = random.Random(run_seed)
    folder = DeltaFolder(tmp_path / "orders")
    parts = [values(seed, seed.randrange(1, 9)) for _ in range(60)]
    sink = folder.make()
    sink.check(parts[0].schema)
    sink.recover(epoch(0))
    bounded = set()
    for subtask, part in enumerate(parts):
        transaction = sink.start(TaskScope(epoch(1), "out", subtask))
        for batch in part.to_batches():
            transaction.write(batch)
        (file,) = transaction.pre_commit().payload["files"]
        found = json.loads(file["statistics"])
        assert found["numRecords"] == part.num_rows
        for name, nulls in found["nullCount"].items():
            assert nulls == part[name].null_count, name
        for name, least in found["minValues"].items():
            assert least is not None and all(
                in_log(value) >= least for value in part[name].to_pylist() if value is not None
            )
            bounded.add(name)
        for name, greatest in found["maxValues"].items():
            assert all(in_log(value, 1) <= greatest for value in part[name].to_pylist() if value is not None), name
    assert bounded == {"id", "big", "tiny", "double", "single", "text", "day", "at", "local", "price"}


def in_log(value: Any, millisecond: int = 0) -> Any:
    """The value in the order of the log's texts. ``millisecond``: 1 rounds a time up."""
    if isinstance(value, datetime):
        plain = value.replace(tzinfo=None)
        micros = plain.microsecond % 1000
        shown = plain - timedelta(microseconds=micros)
        if micros and millisecond:
            shown += timedelta(milliseconds=1)
        return shown.isoformat(timespec="milliseconds") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


def test_large_epochs_become_several_files(folder: DeltaFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.backends.file_formats.ROW_GROUP", 10)
    found = pa.table({"id": pa.array(range(100), pa.int64()), "name": pa.array(["x"] * 100)})
    written(DeltaSink(SinkPlace("out"), DeltaAddress(str(folder.path)), file_bytes=1), found)
    assert len(opened(folder).file_uris()) > 3
    assert opened(folder).to_pyarrow_table().sort_by("id").equals(found)


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
    with pytest.raises(SchemaError, match="no value for the key 'id'"):
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
