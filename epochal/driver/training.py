"""Training of a spare driver: short epochs of a built-in application in a separate session.

Training takes care of the work that slows the first epochs of a JVM: loading classes, generating and compiling code,
starting Python workers. The session in which applications run remains unchanged, which is checked.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import files
from epochal.contracts.conditions import microseconds
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.source import SliceLimits
from epochal.driver.orders import SpareOrders
from epochal.driver.spare import Warmed
from epochal.engine.assembly import assemble
from epochal.engine.class_archive import JAVA_OPTIONS, training_options
from epochal.engine.epoch_input import conditions_after
from epochal.engine.session import create_session, temporary_folder
from epochal.engine.trial import UndecidedBranch
from epochal.errors import EnvironmentProblem
from epochal.pipeline.analysis import analyse
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger("epochal.driver")


NAME = "epochal"


EPOCHS = 4


ROWS = 500


BRANCH = "training"


_SPREAD = 8
"""Number of partitions: enough for each of a few executors to receive some."""


def warm(orders: SpareOrders, is_asked: Callable[[], bool]) -> Warmed:
    """Start Spark and train it until this process is requested.

    Raises any error of these steps, unless the process is requested: the driver that it becomes reports such an error.
    """
    spark: SparkSession | None = None
    try:
        spark = create_session(NAME, Configuration(master=orders.master, spark=orders.spark))
        steps = trained(spark) if orders.executor_template is None else executors_started(spark)
        for _ in steps:
            if is_asked():
                steps.close()
    except Exception as error:
        if spark is not None:
            spark.stop()
        if not is_asked():
            raise
        log.warning("this driver was not warm when it was needed: %s", error)
        return Warmed(lambda: None, lambda: None)
    return Warmed(check=spark.catalog.currentDatabase, stop=spark.stop)


def analysed() -> Warmed:
    """Start Spark with the default configuration and analyse a pipeline. Raises any error of these steps."""
    spark = create_session(NAME, Configuration())
    with _trying(spark) as (training, folder):
        analyse(_pipeline(folder).graph(), training)
    return Warmed(check=spark.catalog.currentDatabase, stop=spark.stop)


def trained(spark: SparkSession) -> Generator[None]:
    """Train step by step. A caller that needs the session earlier closes the iterator.

    Raises the errors of an epoch, and ``EnvironmentProblem`` if the training has changed ``spark``.
    """
    with _trying(spark) as (training, folder):
        yield from _epochs(training, folder)


def executors_started(spark: SparkSession) -> Generator[None]:
    """Like :func:`trained`, for executors on other machines, which cannot read local files: shuffles rows and passes
    them through a Python worker of each executor, then ends. Spark itself waits for the requested executors.
    """
    with _apart(spark) as training:
        for _ in range(EPOCHS):
            rows = training.range(0, ROWS, 1, _SPREAD).selectExpr("id", "id % 97 AS name", "id / 2 AS value")
            sums = rows.groupBy("name").agg({"value": "sum", "id": "max"})
            sums.mapInArrow(lambda batches: batches, sums.schema).collect()
            yield


def main(archive: Path) -> None:
    """Run the training epochs of a spare driver, and the Spark operations of other sources and authors' transforms."""
    spark = create_session("class-training", Configuration(spark={JAVA_OPTIONS: training_options(archive)}))
    try:
        for _ in trained(spark):
            pass
        with tempfile.TemporaryDirectory(prefix="epochal-training-") as folder:
            _read_other_formats(spark, folder)
    finally:
        spark.stop()


def _read_other_formats(spark: SparkSession, folder: str) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "id", "cast(id % 7 as string) as name", "id / 2 as value", "timestamp_seconds(id) as at"
    )
    for format in ("csv", "parquet"):
        path = f"{folder}/{format}"
        rows.write.format(format).save(path)
        read = spark.read.format(format).schema("id bigint, name string, value double, at timestamp").load(path)
        read.createOrReplaceTempView("read")
        windows = "select name, window(at, '1 minute') as span, count(*) as n, collect_list(id) as ids"
        spark.sql(f"{windows} from read where id > 3 group by name, window(at, '1 minute') having n > 0").collect()
        read.unionByName(read).dropDuplicates(["id"]).orderBy("id").limit(10).collect()


@contextmanager
def _trying(spark: SparkSession) -> Iterator[tuple[SparkSession, Path]]:
    """A new session and a folder with input. Raises ``EnvironmentProblem`` if the block has changed ``spark``."""
    with _apart(spark) as training, temporary_folder("training") as folder:
        _write_rows(folder)
        yield training, folder


@contextmanager
def _apart(spark: SparkSession) -> Iterator[SparkSession]:
    """A new session. Raises ``EnvironmentProblem`` if the block has changed ``spark``."""
    before = _visible(spark)
    try:
        yield spark.newSession()
    finally:
        spark.catalog.clearCache()
        spark.createDataFrame([("active", 1)], "again string, n int").collect()  # makes this session the active one
        _check_unchanged(spark, before)


def _check_unchanged(spark: SparkSession, before: Mapping[str, Any]) -> None:
    after = _visible(spark)
    changed = sorted(name for name in before if before[name] != after[name])
    if SparkSession.getActiveSession() is not spark:
        changed.append("the active session")
    if changed:
        raise EnvironmentProblem(f"The training has left something in Spark's session: {', '.join(changed)}.")


def _visible(spark: SparkSession) -> dict[str, Any]:
    """The properties of a session that are visible to an application."""
    return {
        "settings": dict(spark.conf.getAll),
        "tables": [table.name for table in spark.catalog.listTables()],
        "views": spark.sql("SHOW VIEWS IN global_temp").collect(),
        "functions": spark.sql("SHOW USER FUNCTIONS").collect(),
        "databases": [database.name for database in spark.catalog.listDatabases()],
        "database": spark.catalog.currentDatabase(),
    }


class _Counted(KeyedProcess):
    seen = ValueState("n int, at timestamp")
    output = "name string, n int"
    order_by = ("id",)

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        n, at = self.seen.get() or (0, None)
        for row in rows:
            n, at = n + 1, row.at
        self.seen.set(n, at)
        yield key.name, n


def _pipeline(folder: Path) -> Pipeline:
    pipeline = Pipeline("training")
    schema = "id bigint, name string, value double, at timestamp"
    rows = pipeline.read("rows", files.source(f"{folder}/in", format="json", schema=schema, max_files=1))
    names = pipeline.table(
        "names", files.table(f"{folder}/names.json", format="json", schema="name string, word string")
    )
    kept = rows.where("value >= 0 AND name IS NOT NULL")
    sums = kept.key_by("name").aggregate("sums", n="count(*)", total="sum(value)", most="max(value)", mean="avg(value)")
    sums.join(names, on="name", how="left").write("sums", files.sink(f"{folder}/sums", mode="updates"))
    kept.key_by("name").process(_Counted, name="counted").write("counted", files.sink(f"{folder}/out", format="json"))
    return pipeline


def _epochs(spark: SparkSession, folder: Path) -> Iterator[None]:
    store = SnapshotStore(str(folder / "store"))
    orders = ExecutionOrders(
        application=BRANCH,
        execution=BRANCH,
        attempt=1,
        artifact=BRANCH,
        configuration=Configuration(),
        store=store.url,
        cache_directory=str(folder / "state"),
    )
    program = assemble(orders, _pipeline(folder).graph(), spark, store)
    yield
    program.runner.activate()
    branch, sources = UndecidedBranch(program, BRANCH, store, None), program.participants.sources
    for source in sources.values():
        source.restore(None, ())
    for number in range(1, EPOCHS + 1):
        planned = {name: source.plan(SliceLimits(max_records=None)) for name, source in sources.items()}
        slices = {name: slice for name, slice in planned.items() if slice is not None}
        now = microseconds(datetime.now(UTC))
        opening = program.plan.time.opening(sources, slices, now, now)
        branch.run(number, slices, conditions_after(program.plan.time.graph, branch.parent, opening))
        for name, slice in slices.items():
            sources[name].accept(slice)
        yield


def _write_rows(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "names.json").write_text(json.dumps({"name": "1", "word": "one"}))
    for number in range(EPOCHS):
        first = number * ROWS
        rows = (
            {"id": id, "name": str(id % 97), "value": id / 2, "at": f"2026-01-01T00:00:{id % 60:02}Z"}
            for id in range(first, first + ROWS)
        )
        (folder / "in" / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
