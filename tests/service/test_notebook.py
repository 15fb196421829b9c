"""``Pipeline.run`` and ``Pipeline.show`` in the process of the author, and reloading by ``epochal dev``."""

from __future__ import annotations

import json
import threading
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from epochal import Pipeline, tumbling
from epochal.cli.directories import held
from epochal.cli.notebook import QUICK
from epochal.cli.output import Output
from epochal.cli.sample import Development, saved
from epochal.connectors import console, files, generator
from epochal.contracts.configuration import Configuration
from epochal.errors import Conflict, IncompatibleState, OptionError, PipelineError
from epochal.pipeline.analysis import analyse
from epochal.pipeline.runner import RunEpoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def counts(out: Path, bound: int | None = 30, rate: float | None = None) -> Pipeline:
    pipeline = Pipeline("counts")
    rows = pipeline.read("rows", generator.source({"k": "id % 3", "n": "id"}, bound=bound, rate=rate))
    rows.key_by("k").aggregate("totals", n="count(*)").write("out", files.sink(str(out), mode="updates"))
    return pipeline


@pytest.mark.alternating(2)
def test_run_continues_from_its_directory_and_shows_its_epochs(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = counts(tmp_path / "out")
    kept = {"directory": tmp_path / "kept", "configuration": {"max_records_per_epoch": 10, **QUICK}}
    first = pipeline.run(epochs=1, **kept)  # type: ignore[arg-type]
    assert first.epochs == (RunEpoch(epoch=1, rows_in=10, rows_out=3, state_rows=3),)
    rest = pipeline.run(available_now=True, **kept)  # type: ignore[arg-type]
    assert [epoch.epoch for epoch in rest.epochs] == [2, 3]
    assert (rest.rows_in, rest.interrupted) == (20, False)
    assert "<td>3</td><td>10</td>" in rest._repr_html_()
    found = spark.read.parquet(str(tmp_path / "out" / "epoch=0000000003")).collect()
    assert sorted(map(tuple, found)) == [(0, 10), (1, 10), (2, 10)]
    with held(tmp_path / "kept", take_over=False), pytest.raises(Conflict, match="--take-over"):
        pipeline.run(**kept)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="parallelism"):
        pipeline.run(configuration={"parallelism": "many"})


def test_run_and_show_refuse_the_same_pipelines_as_submit(spark: SparkSession, tmp_path: Path) -> None:
    def wrong(*, column: str = "k", **sink: Any) -> Pipeline:
        pipeline = Pipeline("wrong")
        rows = pipeline.read("rows", generator.source({"k": "id % 3"}, bound=30)).with_columns(v=column)
        totals = rows.key_by("k").aggregate("totals", total="sum(v)")
        totals.write("out", files.sink(str(tmp_path / "out"), **sink))
        return pipeline

    for pipeline in (wrong(), wrong(column="rand()", mode="updates")):
        with pytest.raises(PipelineError) as submitted:
            analyse(pipeline.graph(), spark, elsewhere=True)
        for runs in (lambda of: of.run(directory=tmp_path / "kept", configuration=QUICK), Pipeline.show):
            with pytest.raises(PipelineError) as refused:
                runs(pipeline)
            assert refused.value.message == submitted.value.message
    assert not (tmp_path / "out").exists()


def test_run_does_not_change_the_session_of_the_author(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    counts(tmp_path / "out").run(epochs=1, configuration={"parallelism": 3, **QUICK})
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_show_prints_a_sample_and_writes_nothing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts(tmp_path / "out", bound=None, rate=1000).show(2, sample=9)
    shown = capsys.readouterr().out
    assert "sink out  3 rows" in shown and "state table totals  3 rows" in shown
    assert len([line for line in shown.splitlines() if line.strip()[:1].isdigit()]) == 4  # two rows of each
    assert not (tmp_path / "out").exists()
    with pytest.raises(PipelineError, match="has no source"):
        Pipeline("nothing").show()


@pytest.mark.alternating(2)
def test_show_names_a_source_without_rows(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("quiet")
    rows = pipeline.read("rows", files.source(str(tmp_path / "in"), format="json", schema="k int"))
    rows.write("look", console.sink())
    pipeline.show(spark=spark)
    assert "Source rows has no rows." in capsys.readouterr().out


CODE = """
from epochal import KeyedProcess, Pipeline
from epochal.connectors import console, generator

class Twice(KeyedProcess):
    output = "k long, n long"
    def process(self, key, rows, ctx):
        yield key.k, FACTOR * len(rows)

pipeline = Pipeline("dev")
rows = pipeline.read("rows", generator.source({"k": "id % 2"}, bound=10))
rows.key_by("k").process(Twice, name="twice").write("out", console.sink())
"""


def test_dev_runs_each_version_and_continues_after_errors(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, text = tmp_path / "dev.py", StringIO()
    configuration = Configuration.model_validate(QUICK)
    output = Output(False, Console(file=text, width=80), Console(file=text, width=80))
    development = Development(file, {}, 5, 100, spark, configuration, output)

    def version(code: str) -> tuple[bool, str]:
        file.write_text(code)
        text.seek(0)
        text.truncate()
        return development.run(), text.getvalue()

    ran, output_text = version(CODE.replace("FACTOR", "2"))
    assert ran and "sink out  2 rows" in output_text and "10" in output_text
    assert version("x = (") == (False, "error: dev.py, line 1: '(' was never closed: x = (\n")
    ran, output_text = version(CODE)
    assert not ran and "NameError: name 'FACTOR' is not defined" in output_text
    assert [record for record in caplog.records if record.name.startswith("epochal.engine.coordinator")] == []
    ran, output_text = version(CODE.replace("FACTOR", "20"))
    assert ran and "100" in output_text


def test_dev_prints_one_document_a_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dev.py"
    development = Development(file, {}, 1, 100, spark, Configuration.model_validate(QUICK), Output.make(as_json=True))
    file.write_text(CODE.replace("FACTOR", "1"))
    development.run()
    file.unlink()
    development.run()
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert [row["n"] for row in first["outputs"]["out"]] == [5]
    assert second["error"]["type"] == "invalid-artifact"


def test_dev_notices_saved_and_replaced_files(tmp_path: Path) -> None:
    file = tmp_path / "dev.py"
    file.write_text("1")
    saves = saved(file)
    next(saves)
    file.write_text("2")  # saved while a version runs
    next(saves)

    def replace() -> None:
        (tmp_path / "other").write_text("beside")
        (tmp_path / ".swap").write_text("3")
        (tmp_path / ".swap").replace(file)

    timer = threading.Timer(0.3, replace)
    timer.start()
    next(saves)
    assert file.read_text() == "3"


@pytest.mark.alternating(3)
def test_run_of_bounded_files_drains_or_continues_next_time(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("visits")
    schema = "k string, at timestamp"
    visits = pipeline.read("visits", files.source(str(tmp_path / "in"), format="json", schema=schema, bounded=True))
    windows = visits.with_watermark("at", "1 minute").key_by("k").window(tumbling("1 hour"))
    windows.aggregate("hourly", n="count(*)").write("out", files.sink(str(tmp_path / "out")))
    kept = {"directory": tmp_path / "kept", "configuration": QUICK}
    for hour in (10, 11):
        visit = {"k": "a", "at": f"2026-01-01T{hour}:30:00Z"}
        (tmp_path / "in" / f"{hour}.json").write_text(json.dumps(visit) + "\n")
        outcome = pipeline.run(drain=hour == 11, **kept)  # type: ignore[arg-type]
        assert outcome.drained is (hour == 11)
    assert [epoch.rows_out for epoch in outcome.epochs] == [0, 1, 1]
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.window_start.hour, row.n) for row in found) == [(10, 1), (11, 1)]
    with pytest.raises(IncompatibleState, match="Start again with another --directory"):
        pipeline.run(**kept)  # type: ignore[arg-type]
