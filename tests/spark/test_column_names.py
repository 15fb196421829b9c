"""Names with dots, backticks and spaces, wherever a name becomes a column in Spark, Arrow or a database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import epochal
from epochal import BatchFunction, KeyedProcess, ListState, MapState, Pipeline, ValueState
from epochal import functions as F
from epochal.connectors import console, files, generator
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Configuration
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.contracts.source import SliceLimits
from epochal.engine.trial_comparison import _rows
from epochal.pipeline.analysis import analyse
from epochal.testing import Harness
from tests.kit.databases import DbmsDatabase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY, VALUE, NOTE = "user.id`s", "a.b", "`of note`"
DECLARED = "`last.v``alue` int, `.x` struct<`p.q`: int>"


class Keep(KeyedProcess):
    kept = ValueState(DECLARED)
    every = ListState("`e.v` int")
    by_note = MapState(key="`n.``ote` string", value="`v.v` int")
    output = "`user.id``s` string, `out.put` int, `n``o` bigint"
    order_by = (VALUE, NOTE)

    def process(self, key: Any, rows: Any, ctx: Any) -> Iterator[Any]:
        before = self.kept.get()
        for row in rows:
            value, note = row[1], row[2]
            self.kept.set(**{"last.v`alue": value, ".x": {"p.q": value}})
            self.every.append(value)
            self.by_note.put(note, value)
        yield {KEY: key[0], "out.put": before and before[0], "n`o": len(self.every.get())}


class KeepBatch(BatchFunction):
    kept = ValueState(DECLARED)
    output = "`user.id``s` string, `b.b` int"

    def process_batch(self, batch: pa.Table, states: Any, ctx: Any) -> pa.Table:
        rows = batch.group_by([KEY]).aggregate([(VALUE, "max")]).rename_columns([KEY, "last.v`alue"])
        empty = pa.nulls(rows.num_rows, pa.struct([("p.q", pa.int32())]))
        states["kept"].put(rows.append_column(".x", empty))
        return rows.rename_columns([KEY, "b.b"])


def build(folder: Path) -> Pipeline:
    pipeline = Pipeline("names")
    columns = {KEY: "cast(id as string)", VALUE: "cast(id as int)", NOTE: "'n'", "old.x": "1"}
    rows = pipeline.read("rows", generator.source(columns))
    known = pipeline.table("known", files.table(str(folder), schema="`user.id``s` string, `kno.wn` string"))
    rows = rows.drop("old.x").join(known.select(F.col(f"`{KEY.replace('`', '``')}`"), "`kno.wn`"), on=KEY, how="left")
    rows = (
        rows.with_columns(**{"t.w`o": "`a.b` * 2"})
        .where("`t.w``o` >= 0")
        .union(rows.with_column("t.w`o", "0").where("false"))
    )
    keyed = rows.select("`user.id``s`", "`a.b`", "```of note```", "`kno.wn`", "`t.w``o`").key_by(KEY)
    totals = keyed.aggregate(
        "totals", **{"to.tal": "sum(`a.b`)", "me`an": "avg(`t.w``o`)", "be.st": "max_by(`kno.wn`, `a.b`)"}
    )
    totals.write("totals", console.sink())
    keyed.process(Keep).write("kept", console.sink())
    keyed.process_batch(KeepBatch).key_by("b.b").aggregate("again", **{"n.n": "count(*)"}).write(
        "again", console.sink()
    )
    return pipeline


@pytest.mark.parametrize("parallelism", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.alternating(3)
def test_special_names_work_in_every_role(spark: SparkSession, tmp_path: Path, parallelism: int) -> None:
    """With 2 subtasks, operators use the shuffle of Spark's aggregation; with 3, they do not."""
    pq.write_table(pa.table({KEY: ["ann"], "kno.wn": ["here"]}), tmp_path / "known.parquet")
    pipeline = build(tmp_path)
    analyse(pipeline.graph(), spark)
    configuration = Configuration(parallelism=parallelism, state_backend="heap", epoch_interval_seconds=0)
    with Harness(pipeline, spark, configuration) as test:
        test.epoch(rows=[("ann", 3, "x", 1), ("bob", 4, "y", 1)])
        found = test.epoch(rows=[("ann", 5, "z", 1)])
        assert found["totals"].to_pylist() == [{KEY: "ann", "to.tal": 8, "me`an": 8.0, "be.st": "here"}]
        assert found["kept"].to_pylist() == [{KEY: "ann", "out.put": 3, "n`o": 2}]
        assert found["again"].to_pylist() == [{"b.b": 5, "n.n": 1}]
        assert {row["n.`ote"] for row in test.state("keep.by_note").to_pylist()} == {"x", "y", "z"}
        state = epochal.read_state(spark, test.store, "keep.kept").collect()
        assert {row[KEY]: (row["last.v`alue"], row[".x"]["p.q"]) for row in state} == {"ann": (5, 5), "bob": (4, 4)}
        totals = epochal.read_state(spark, test.store, "totals").collect()
        assert {row[KEY]: (row["to.tal"], row["me`an"]) for row in totals} == {"ann": (8, 8.0), "bob": (4, 8.0)}


BATCH = pa.RecordBatch.from_pydict({KEY: ["ann"], VALUE: [1], ".x": ["y"], "(z)%s": [2]})


def epoch(number: int) -> EpochScope:
    return EpochScope("names", EpochKey("main", number), 1, None)


def committed(backend: SinkBackend, *batches: pa.RecordBatch) -> None:
    backend.check(BATCH.schema)
    backend.recover(epoch(0))
    transaction = backend.start(TaskScope(epoch(1), "out", 0))
    for batch in batches:
        transaction.write(batch)
    backend.commit(epoch(1), [transaction.pre_commit()])


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_keep_special_names(spark: SparkSession, tmp_path: Path, format: str) -> None:
    place = SinkPlace("out", None)
    committed(files.sink(str(tmp_path / "out"), format=format).make(place), BATCH.select([KEY, VALUE, ".x"]))  # type: ignore[arg-type]
    schema = None if format == "parquet" else "`user.id``s` string, `a.b` bigint, `.x` string"
    options = {"header": True} if format == "csv" else {}
    (written,) = (tmp_path / "out").glob("epoch=*")
    source = files.source(str(written), format=format, schema=schema, **options).make()  # type: ignore[arg-type]
    slice = source.plan(SliceLimits(None))
    assert slice is not None
    assert [row.asDict() for row in source.read(spark, slice).collect()] == [{KEY: "ann", VALUE: 1, ".x": "y"}]


def test_console_shows_special_names(capsys: pytest.CaptureFixture[str]) -> None:
    committed(console.sink().make(SinkPlace("out", None)), BATCH)
    assert KEY in capsys.readouterr().out


@pytest.mark.parametrize("keys", [(), (".x", KEY)])
def test_databases_keep_special_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]) -> None:
    database = DbmsDatabase(f"sqlite:///{tmp_path / 'out.sqlite'}", tmp_path, monkeypatch, keys=keys)
    try:
        committed(database.make(), *[BATCH] * 2)
        row = {KEY: "ann", VALUE: 1, ".x": "y", "(z)%s": 2}
        assert database.visible() == [row] * (1 if keys else 2)
    finally:
        database.close()


def test_trial_comparison_keeps_special_names(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("ann", Decimal(1))], "`user.id``s` string, `a.b` decimal(3,0)")
    (row,) = _rows(frame, [KEY, VALUE], 1).collect()
    assert json.loads(row.row) == {KEY: "ann", VALUE: "1"}
