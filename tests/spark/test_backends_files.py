"""The files sink: crash points, ownership, formats, and the rows that a Spark reader sees."""

from __future__ import annotations

import datetime
import errno
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal.backends.files import FilesBackend
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.errors import OptionError, SchemaError, SinkError, StorageFull
from epochal.faults import FaultPoint, declared, injected

STEPS = [name for name in declared() if name.startswith("E5.files.")]


class Crash(BaseException):
    """Simulated death of the process. No error handling may run."""


def scope(number: int, attempt: int = 1, branch: str = "main", application: str = "delays") -> EpochScope:
    return EpochScope(application, EpochKey(branch, number), attempt, None)


def write(backend: FilesBackend, number: int, *texts: str, subtask: int = 0) -> Handle:
    transaction = backend.start(TaskScope(scope(number), "out", subtask))
    if texts:
        transaction.write(pa.RecordBatch.from_pydict({"text": list(texts)}))
    return transaction.pre_commit()


def visible(folder: Path) -> dict[str, list[str]]:
    """The text in each folder, as a reader without Epochal sees it."""
    return {
        epoch.name: sorted(text for file in epoch.iterdir() for text in pa.parquet.read_table(file)["text"].to_pylist())
        for epoch in sorted(folder.glob("[!_.]*"))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def backend(folder: Path) -> FilesBackend:
    backend = FilesBackend(str(folder))
    backend.recover(scope(0))
    return backend


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_crash_at_any_step_of_the_commit_shows_all_or_nothing(
    folder: Path, backend: FilesBackend, step: str, times: int
) -> None:
    backend.commit(scope(1), [write(backend, 1, "before")])
    handles = [write(backend, 2, f"{subtask}", subtask=subtask) for subtask in range(3)]
    before, after = (
        {"epoch=0000000001": ["before"]},
        {"epoch=0000000001": ["before"], "epoch=0000000002": ["0", "1", "2"]},
    )
    hits = 0

    def crash(point: FaultPoint, epoch: int | None) -> None:
        nonlocal hits
        hits += point.name == step
        if point.name == step and hits == times:
            raise Crash

    with injected(crash):
        try:
            FilesBackend(str(folder)).commit(scope(2), handles)
        except Crash:
            assert visible(folder) in (before, after)
    successor = FilesBackend(str(folder))
    successor.recover(scope(2, attempt=2))
    successor.commit(scope(2, attempt=2), handles)
    successor.sweep(scope(2, attempt=2), handles)
    assert visible(folder) == after
    assert [path for path in folder.glob("_staging/**/*") if path.is_file()] == []


@pytest.mark.parametrize("step", STEPS)
def test_concurrent_commits_of_one_epoch_write_it_once(folder: Path, backend: FilesBackend, step: str) -> None:
    handles = [write(backend, 2, f"{subtask}", subtask=subtask) for subtask in range(3)]
    overtaken = False

    def overtake(point: FaultPoint, epoch: int | None) -> None:
        nonlocal overtaken
        if point.name == step and not overtaken:
            overtaken = True
            FilesBackend(str(folder)).commit(scope(2, attempt=2), handles)

    with injected(overtake):
        backend.commit(scope(2), handles)
    backend.sweep(scope(2), handles)
    assert overtaken
    assert visible(folder) == {"epoch=0000000002": ["0", "1", "2"]}
    assert list(folder.glob("_staging/main/*")) == []


def test_lost_staged_file_fails_the_commit_and_hides_the_epoch(folder: Path, backend: FilesBackend) -> None:
    handles = [write(backend, 1, "a", subtask=0), write(backend, 1, "b", subtask=1)]
    (folder / "_staging/main" / handles[1].payload["staged"]).unlink()
    with pytest.raises(SinkError, match="has lost"):
        backend.commit(scope(1), handles)
    assert visible(folder) == {}


def test_foreign_file_in_an_epochs_folder_is_detected(folder: Path, backend: FilesBackend) -> None:
    handle = write(backend, 1, "a")
    backend.commit(scope(1), [handle])
    (folder / "epoch=0000000001" / "foreign.parquet").write_text("x")
    with pytest.raises(SinkError, match=r"foreign\.parquet is missing, unexpected or changed"):
        backend.commit(scope(1), [handle])


def test_a_folder_has_one_owner(folder: Path, backend: FilesBackend, tmp_path: Path) -> None:
    FilesBackend(str(folder)).recover(scope(0, attempt=2))
    with pytest.raises(SinkError, match=r"belongs to application 'delays', branch main\. Name another folder"):
        FilesBackend(str(folder)).recover(scope(0, application="other"))
    with pytest.raises(SinkError, match=r"another run wrote it.*delete the folder; to keep it, choose another one"):
        FilesBackend(str(folder)).recover(scope(0, branch="second"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.csv").write_text("x")
    with pytest.raises(SinkError, match=r"already holds other files \(data.csv\)"):
        FilesBackend(str(tmp_path / "mine")).recover(scope(0))


def test_a_target_that_is_ahead_of_the_state_is_refused(folder: Path, backend: FilesBackend) -> None:
    backend.commit(scope(3), [write(backend, 3, "a")])
    FilesBackend(str(folder)).recover(scope(3, attempt=2))
    with pytest.raises(SinkError, match="already holds epoch 3, but the application's state is at epoch 2"):
        FilesBackend(str(folder)).recover(scope(2, attempt=3))


def test_epoch_aborted_during_its_commit_leaves_no_files(folder: Path, backend: FilesBackend) -> None:
    handles = [write(backend, 1, "a", subtask=0), write(backend, 1, "b", subtask=1)]

    def crash(point: FaultPoint, epoch: int | None) -> None:
        if point.name == "E5.files.gathered-one":
            raise Crash

    with injected(crash), suppress(Crash):
        backend.commit(scope(1), handles)
    backend.commit(scope(1), [])
    backend.abort(scope(1), handles)
    backend.sweep(scope(1), [])
    assert visible(folder) == {}
    assert list((folder / "_staging" / "main").iterdir()) == []


def test_full_disk_is_reported(folder: Path, backend: FilesBackend) -> None:
    def full(point: FaultPoint, epoch: int | None) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with injected(full), pytest.raises(StorageFull, match="Free space"):
        write(backend, 1, "a")
    handle = write(backend, 1, "a")
    with injected(full), pytest.raises(StorageFull, match="commit epoch 1"):
        backend.commit(scope(1), [handle])
    backend.commit(scope(1), [handle])
    assert visible(folder) == {"epoch=0000000001": ["a"]}


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SinkError, match="could not take over"):
        FilesBackend(str(tmp_path / "file" / "out")).recover(scope(0))


def test_only_local_folders_are_accepted() -> None:
    for path in ("s3://bucket/out", "hdfs://host/out"):
        with pytest.raises(OptionError, match="renames a folder atomically"):
            FilesBackend(path)
    assert FilesBackend("file:///data/out").target == "files:/data/out"


TYPES = pa.schema(
    [
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int8()),
        pa.field("big", pa.int64()),
        pa.field("price", pa.decimal128(12, 3)),
        pa.field("ratio", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("wall", pa.timestamp("us")),
    ]
)
ROWS = [
    {
        "flag": True,
        "small": -7,
        "big": 2**53 + 1,
        "price": Decimal("-1234.500"),
        "ratio": 0.1,
        "text": 'a "quoted" \\ line,\n\tétoile 漢 \x01',
        "day": datetime.date(2013, 1, 31),
        "at": datetime.datetime(2013, 1, 31, 5, 15, 0, 123456, tzinfo=datetime.UTC),
        "wall": datetime.datetime.fromisoformat("1969-12-31T23:59:59.000005"),
    },
    dict.fromkeys(TYPES.names),
    {**dict.fromkeys(TYPES.names), "text": "", "ratio": float("inf"), "price": Decimal("0.000"), "big": 0},
]
DDL = (
    "flag boolean, small tinyint, big bigint, price decimal(12,3), ratio double, text string, day date, at timestamp, "
    "wall timestamp_ntz"
)


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_spark_reads_the_same_rows_and_types_back(spark: SparkSession, tmp_path: Path, format: str) -> None:
    folder = tmp_path / "out"
    backend = FilesBackend(str(folder), format)
    backend.check(TYPES)
    backend.recover(scope(0))
    transaction = backend.start(TaskScope(scope(12), "out", 0))
    rows = ROWS
    if format == "csv":  # CSV has no line breaks that Spark reads by default
        rows = [{**row, "text": row["text"] and row["text"].replace("\n", " ")} for row in ROWS]
    transaction.write(pa.RecordBatch.from_pylist(rows, schema=TYPES))
    backend.commit(scope(12), [transaction.pre_commit()])
    reader = spark.read.format(format)
    if format != "parquet":
        reader = reader.schema(DDL + ", epoch int")
    if format == "csv":
        reader = reader.options(header=True, nullValue="\ue000")
    frame = reader.load(str(folder))
    assert {row.epoch for row in frame.collect()} == {12}
    got = frame.drop("epoch").toArrow().cast(TYPES)
    assert got.to_pylist() == rows
    if format == "parquet":
        assert frame.drop("epoch").schema.simpleString() == f"struct<{DDL.replace(', ', ',').replace(' ', ':')}>"


def test_nested_columns_are_written_to_json(spark: SparkSession, tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path / "out"), "json")
    backend.recover(scope(0))
    schema = pa.schema(
        [("xs", pa.list_(pa.int64())), ("s", pa.struct([("a", pa.string())])), ("m", pa.map_(pa.string(), pa.int64()))]
    )
    rows = [{"xs": [1, None], "s": {"a": 'x"'}, "m": [("k", 1)]}, {"xs": None, "s": None, "m": None}]
    transaction = backend.start(TaskScope(scope(1), "out", 0))
    transaction.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    backend.commit(scope(1), [transaction.pre_commit()])
    frame = spark.read.schema("xs array<bigint>, s struct<a: string>, m map<string,bigint>").json(str(tmp_path / "out"))
    assert [(row.xs, row.s and row.s.a, row.m) for row in frame.collect()] == [([1, None], 'x"', {"k": 1}), (None,) * 3]


def test_unsupported_columns_are_refused_by_the_check() -> None:
    with pytest.raises(SchemaError, match="CSV cannot hold column 'xs'"):
        FilesBackend("out", "csv").check(pa.schema([("xs", pa.list_(pa.int64()))]))
    with pytest.raises(SchemaError, match="cannot be named 'epoch'"):
        FilesBackend("out").check(pa.schema([("Epoch", pa.int64())]))
    with pytest.raises(OptionError, match="formats are parquet"):
        FilesBackend("out", "avro")
