"""Files that a source has listed and that are deleted before an epoch has read them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochal import Pipeline
from epochal.connectors import files
from epochal.connectors.files import FilesSource
from epochal.contracts.configuration import Configuration
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.failures import failure_of
from epochal.engine.job import Answers, EpochPlan, Participants
from epochal.engine.loop import EpochLoop
from epochal.errors import EpochAborted, FilesMissing, OptionError, SinkError, SliceOutdated, SourceChanged
from epochal.snapshots.manifest import Manifest
from tests.kit.programs import EmptyEpochs
from tests.unit.test_engine_loop import loop_of

UNLIMITED = SliceLimits(None)
MESSAGE = r"listed by the source, and missing .* set missing='skip'"


def put(folder: Path, *names: str) -> None:
    for second, name in enumerate(names, 1):
        (folder / name).write_text(json.dumps({"v": ord(name[0])}) + "\n")
        os.utime(folder / name, (second, second))


def made(folder: Path, **options: Any) -> FilesSource:
    source = files.source(str(folder), "json", "v int", **options).make()
    assert isinstance(source, FilesSource)
    return source


def names(slice: Slice, of: str = "files") -> list[str]:
    return [Path(record["path"]).name for record in slice.detail.get(of, ())]


def planned(source: FilesSource) -> Slice:
    slice = source.plan(UNLIMITED)
    assert slice is not None
    return slice


@pytest.mark.parametrize("available", [True, False])
def test_file_deleted_between_epochs_is_an_error_that_names_the_setting(tmp_path: Path, available: bool) -> None:
    put(tmp_path, "a", "b", "c")
    source = made(tmp_path, max_files=1)
    if available:
        source.limit_to_available()
    source.accept(planned(source))
    (tmp_path / "b").unlink()
    for _ in range(2):  # also on repetition
        with pytest.raises(FilesMissing, match=f"{tmp_path}/b: {MESSAGE}"):
            source.plan(UNLIMITED)
    assert not source.ended
    put(tmp_path, "a", "b")  # restored with its modification time
    assert names(planned(source)) == ["b"]


def test_processed_file_may_be_deleted(tmp_path: Path) -> None:
    put(tmp_path, "a")
    source = made(tmp_path)
    source.limit_to_available()
    source.accept(planned(source))
    (tmp_path / "a").unlink()
    assert (source.plan(UNLIMITED), source.ended) == (None, True)


def test_a_skipped_file_is_recorded_in_the_next_slice_and_counted(tmp_path: Path) -> None:
    put(tmp_path, "a", "b", "c")
    source = made(tmp_path, max_files=1, missing="skip")
    source.limit_to_available()
    first = planned(source)
    source.accept(first)
    (tmp_path / "b").unlink()
    second = planned(source)
    assert (names(second), names(second, "missing")) == (["c"], ["b"])
    assert planned(source) == second  # an aborted epoch does not lose it
    source.accept(second)
    assert (source.plan(UNLIMITED), source.ended, source.backlog().skipped) == (None, True, 1)
    restored = made(tmp_path)
    restored.restore(None, [first, second])
    later = made(tmp_path)
    later.restore(json.loads(json.dumps(source.checkpoint())), [])
    assert restored.backlog().skipped == later.backlog().skipped == 1
    put(tmp_path, "a", "b")
    assert names(planned(restored)) == ["b"]  # a file that reappears is a new one


def test_last_skipped_files_are_recorded_in_a_slice_without_rows(tmp_path: Path) -> None:
    put(tmp_path, "a", "b")
    source = made(tmp_path, max_files=1, missing="skip")
    source.limit_to_available()
    source.accept(planned(source))
    (tmp_path / "b").unlink()
    last = planned(source)
    assert (last.has_no_rows, names(last), names(last, "missing"), source.ended) == (True, [], ["b"], False)
    source.accept(last)
    assert (source.plan(UNLIMITED), source.ended, source.backlog().skipped) == (None, True, 1)


def test_files_of_a_recorded_slice_are_not_skipped_in_a_trial(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "a")
    slice = planned(made(tmp_path))
    (tmp_path / "a").unlink()
    with pytest.raises(SourceChanged, match="a is missing since its slice was recorded"):
        made(tmp_path, missing="skip").read(spark, slice)


def test_the_setting_is_checked_and_described(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="missing"):
        made(tmp_path, missing="ignore")
    assert files.source("in", "json", "v int", missing="skip").description["missing"] == "skip"


class Reading(EmptyEpochs):
    """Epochs that only read the source ``in``. ``planned`` is called before the files are checked, ``read`` between
    this check and Spark's job."""

    def __init__(self, spark: SparkSession, source: FilesSource) -> None:
        self.spark, self.source = spark, source
        self.planned: Callable[[], object] = lambda: None
        self.read: Callable[[], object] = lambda: None
        self.rows: list[list[str]] = []

    def run(self, plan: EpochPlan, timeout_seconds: float) -> Answers:
        slice = plan.slices["in"]
        self.planned()
        if not slice.has_no_rows:
            frame = self.source.read(self.spark, slice)
            self.read()
            self.rows.append(sorted(chr(row.v) for row in frame.collect()))
        return super().run(plan, timeout_seconds)


def available_now(runner: Reading, folder: Path, slices: list[Slice]) -> EpochLoop:
    def note(manifest: Manifest) -> None:
        slices.append(manifest.slices["in"])

    configuration = Configuration(parallelism=1, epoch_interval_seconds=0, tolerable_failed_epochs=0)
    orders = {"available_now": True}
    runner.source.limit_to_available()
    return loop_of(configuration, Participants({"in": runner.source}), runner, folder / "store", orders, on_epoch=note)


def ran(loop: EpochLoop) -> None:
    loop.commits.start()
    try:
        loop.run()
    finally:
        loop.commits.stop()


@pytest.mark.parametrize("at", ["planned", "read"])
def test_file_deleted_within_an_epoch_fails_the_attempt(spark: SparkSession, tmp_path: Path, at: str) -> None:
    (tmp_path / "in").mkdir()
    put(tmp_path / "in", "a", "b")
    runner, slices = Reading(spark, made(tmp_path / "in")), list[Slice]()
    setattr(runner, at, lambda: (tmp_path / "in/b").unlink(missing_ok=True))
    with pytest.raises(EpochAborted, match=MESSAGE) as raised:
        ran(available_now(runner, tmp_path, slices))
    assert (failure_of(raised.value).type, slices) == (FilesMissing.slug, [])


@pytest.mark.parametrize("at", ["planned", "read"])
def test_file_deleted_within_an_epoch_is_skipped_before_the_decision(
    spark: SparkSession, tmp_path: Path, at: str
) -> None:
    """No failed epoch is tolerated here: skipping a file is no failure."""
    (tmp_path / "in").mkdir()
    put(tmp_path / "in", "a", "b")
    runner, slices = Reading(spark, made(tmp_path / "in", missing="skip")), list[Slice]()
    setattr(runner, at, lambda: (tmp_path / "in/b").unlink(missing_ok=True))
    loop = available_now(runner, tmp_path, slices)
    ran(loop)
    assert [(names(slice), names(slice, "missing")) for slice in slices] == [(["a"], ["b"])]
    assert (runner.rows, runner.source.backlog().skipped) == ([["a"]], 1)
    assert loop.coordinator.meter.report().moment.sources["in"].skipped_files == 1
    assert SliceOutdated.slug == "slice-outdated"


def test_a_run_ends_with_an_epoch_that_only_records_a_skipped_file(spark: SparkSession, tmp_path: Path) -> None:
    """On the whole engine. A second run without the directory of the first cannot write to the same sink."""
    (tmp_path / "in").mkdir()
    put(tmp_path / "in", "a", "b")

    def clearing(frame: DataFrame) -> DataFrame:
        if any(file.endswith("/in/a") for file in frame.inputFiles()):
            (tmp_path / "in/b").unlink(missing_ok=True)
        return frame

    pipeline = Pipeline("clearing")
    source = files.source(str(tmp_path / "in"), "json", "v int", max_files=1, missing="skip")
    pipeline.read("in", source).transform(clearing).write("out", files.sink(str(tmp_path / "out"), "json"))
    outcome = pipeline.run(spark=spark, available_now=True, directory=tmp_path / "state")
    assert [epoch.rows_in for epoch in outcome.epochs] == [1, 0]
    assert [json.loads(path.read_text()) for path in tmp_path.glob("out/epoch=*/*")] == [{"v": ord("a")}]
    assert pipeline.run(spark=spark, available_now=True, directory=tmp_path / "state").epochs == ()
    with pytest.raises(SinkError, match=f"{tmp_path}/out belongs to .*--directory.* delete the folder"):
        pipeline.run(spark=spark, available_now=True, directory=tmp_path / "other")
