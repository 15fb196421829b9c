"""``failure_of``: the reports of all errors of an epoch, in Spark's executors and in the driver."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from epochal.contracts.catalog import Failure
from epochal.declarations.author_classes import Context
from epochal.declarations.keyed import KeyedProcess
from epochal.engine.failures import failure_of
from epochal.errors import AuthorError, EpochAborted, EpochTimeout, FileCorrupt, MalformedRecord
from epochal.operators.process.work import ProcessWork
from epochal.state.table import Column
from epochal.tasks.reporting import MARKER, Reporting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def failure(action: Callable[[], Any]) -> Failure:
    with pytest.raises((PySparkException, Py4JError)) as raised:
        action()
    return failure_of(raised.value)


def file_of(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(("format", "text"), [("json", '{"a": 1}\n{"a": "x}\n'), ("csv", "1,2\nx,2\n")])
@pytest.mark.alternating(2)
def test_malformed_records_name_the_file(spark: SparkSession, tmp_path: Path, format: str, text: str) -> None:
    path = file_of(tmp_path, f"bad.{format}", text)
    frame = spark.read.schema("a int, b int").option("mode", "FAILFAST").format(format).load(path)
    found = failure(lambda: frame.groupBy("a").count().collect())
    assert found.type == "malformed-record"
    assert path in found.message
    assert "Correct the file or the schema" in found.message


def test_corrupt_file_is_a_source_error(spark: SparkSession, tmp_path: Path) -> None:
    path = file_of(tmp_path, "bad.parquet", "no Parquet at all")
    found = failure(lambda: spark.read.schema("a int").parquet(path).collect())
    assert (found.type, path in found.message) == ("source-error", True)


def test_deleted_file_is_a_source_error(spark: SparkSession, tmp_path: Path) -> None:
    path = file_of(tmp_path, "gone.json", '{"a": 1}\n')
    frame = spark.read.schema("a int").json(path)
    Path(path).unlink()
    found = failure(frame.collect)
    assert found.type == "source-error"
    assert path in found.message and "is missing" in found.message


def test_exception_in_a_transform_is_an_author_error(spark: SparkSession) -> None:
    def inverse(number: int) -> int:
        return 1 // number

    found = failure(lambda: spark.range(3).select(F.udf(inverse, "int", useArrow=False)("id")).collect())
    assert found.type == "author-error"
    assert "ZeroDivisionError" in found.message
    assert found.traceback is not None and "in inverse" in found.traceback


def test_connection_error_in_a_transform_is_transient(spark: SparkSession) -> None:
    def connect(number: int) -> int:
        if number == 0:
            raise ConnectionRefusedError(111, "Connection refused")
        raise subprocess.CalledProcessError(1, "ask")

    for row in (0, 1):
        rows = spark.range(row, row + 1).select(F.udf(connect, "int", useArrow=False)("id"))
        found = failure(rows.collect)
        assert found.type == "author-error-transient", found.message


def test_errors_of_spark_computations_are_classified(spark: SparkSession) -> None:
    refused = failure(lambda: spark.range(3).select("nope"))
    assert refused.type == "invalid-pipeline" and "`nope`" in refused.message
    divided = failure(lambda: spark.range(3).select(F.lit(1) / F.col("id")).collect())
    assert divided.type == "computation-failed" and "Division by zero" in divided.message


def test_full_disk_in_an_executor_is_reported(spark: SparkSession) -> None:
    def full(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise OSError(errno.ENOSPC, "No space left on device")

    found = failure(lambda: spark.range(3).mapInArrow(full, "id long").collect())
    assert found.type == "storage-full"
    assert "No space left on device" in found.message


class Broken(KeyedProcess):
    output = "plane string, total bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterable[Any]:
        raise LookupError(f"no flight of “{key.plane}”\nin two lines")


def test_task_failure_names_operator_key_and_step(spark: SparkSession, make_operator: Any) -> None:
    row = pa.schema([("plane", pa.string()), ("delay", pa.int32())])
    output = pa.schema([("plane", pa.string()), ("total", pa.int64())])
    work = ProcessWork(Broken, ("plane", "delay"))
    operator = make_operator(work, [Column(name="plane", type="string")], row, output, parallelism=1)
    task = operator.task()
    frame = spark.createDataFrame(operator.table([{"plane": "N1", "delay": 3}])).coalesce(1)
    schema = "plane string, total long, _handle binary, _subtask int"
    found = failure(lambda: frame.mapInArrow(task, schema).collect())
    assert found.type == "author-error"
    assert found.step == "T2"
    assert found.message.startswith("Operator 'operator', key (plane='N1'): the author's code raised LookupError")
    assert "“N1”" in found.message
    assert found.traceback is not None
    assert "raise LookupError" in found.traceback and "epochal/engine" not in found.traceback


def test_errors_of_epochal_in_the_driver_are_classified() -> None:
    assert failure_of(EpochTimeout("The epoch took longer than 60 s.")) == Failure(
        type="epoch-timeout", message="The epoch took longer than 60 s."
    )
    full = failure_of(OSError(errno.ENOSPC, "No space left on device", "manifest.json"))
    assert full.type == "storage-full" and "manifest.json" in full.message


def test_an_aborted_epoch_reports_its_cause() -> None:
    try:
        raise EpochAborted("Epoch main/3 was aborted: a.json cannot be read.") from MalformedRecord("a.json ..")
    except EpochAborted as error:
        found = failure_of(error)
    assert found == Failure(type="malformed-record", message="Epoch main/3 was aborted: a.json cannot be read.")


def test_a_chained_error_is_reported_as_itself() -> None:
    with pytest.raises(FileCorrupt) as raised, Reporting("Operator 'a'", 3, step="T3", subtask=1):
        raise FileCorrupt("part-1 is corrupt.") from OSError("bad sector")
    try:
        raise AuthorError("something of the pipeline failed") from raised.value
    except AuthorError as error:
        found = failure_of(error)
    assert (found.type, found.step) == ("file-corrupt", "T3")
    assert found.message == "Operator 'a', subtask 1, epoch 3, T3: part-1 is corrupt."


def test_a_broken_marker_line_is_ignored() -> None:
    found = failure_of(RuntimeError(f"author's own text: {MARKER}{{not json}}"))
    assert found.type == "epoch-aborted"
    assert "author's own text" in found.message
