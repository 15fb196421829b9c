"""Executions with ``available_now`` process the input that exists at their start, and end."""

from __future__ import annotations

import json
import threading
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal import Pipeline
from epochal.cli.main import main
from epochal.connectors import files, generator
from epochal.contracts.catalog import Failure
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.engine.execution import Hooks, run
from epochal.errors import OptionError
from epochal.service.catalog.standalone import standalone_catalog, standalone_epochs
from epochal.snapshots.manifest import Manifest

FAILURE = Failure(type="invalid-option", message="the disk is lost")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochal.pipeline.definitions import SourceDefinition
    from tests.service.conftest import Plane


class Readings:
    """A growing folder of input, and runs of a pipeline on it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()

    def put(self, name: str, rows: int) -> None:
        (self.folder / f".{name}").write_text("".join(json.dumps({"k": "a", "n": 1}) + "\n" for _ in range(rows)))
        (self.folder / f".{name}").rename(self.folder / "in" / name)

    @property
    def source(self) -> SourceDefinition:
        return files.source(str(self.folder / "in"), format="json", schema="k string, n int", max_files=1)

    def run(self, source: SourceDefinition | None = None, hooks: Hooks | None = None) -> None:
        pipeline = Pipeline("readings")
        totals = pipeline.read("in", source or self.source).key_by("k").aggregate("totals", total="sum(n)")
        totals.write("out", files.sink(str(self.folder / "out"), mode="updates"))
        catalog = standalone_catalog(self.url, "readings", "0" * 64)
        catalog.begin_attempt()
        orders = ExecutionOrders(
            application="readings",
            execution=catalog.execution,
            attempt=catalog.attempt,
            artifact="0" * 64,
            configuration=Configuration(epoch_interval_seconds=3600, parallelism=1, state_backend="heap"),
            available_now=True,
            store=str(self.folder / "store"),
            cache_directory=str(self.folder / "cache"),
        )
        run(orders, pipeline.graph(), self.spark, catalog, hooks or Hooks())

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'catalog.sqlite'}"

    @property
    def epochs(self) -> list[tuple[str, int | None]]:
        return [(epoch.state, epoch.rows_in) for epoch in standalone_epochs(self.url, "readings")]

    def shown(self, epoch: int) -> Any:
        ((row,),) = (self.spark.read.parquet(str(self.folder / "out" / f"epoch={epoch:010}")).collect(),)
        return row.total


@pytest.mark.alternating(3)
def test_a_run_processes_existing_input_and_the_next_run_continues(spark: SparkSession, tmp_path: Path) -> None:
    readings = Readings(spark, tmp_path)
    for number in (1, 2):
        readings.put(f"{number}.json", rows=number)

    def put_more(manifest: Manifest) -> None:
        readings.put(f"late-{manifest.epoch}.json", rows=10)

    readings.run(hooks=Hooks(put_more))  # does not wait for the epoch interval of an hour
    assert readings.epochs == [("committed", 1), ("committed", 2)]
    assert readings.shown(2) == 3

    readings.run()
    assert readings.epochs[2:] == [("committed", 10), ("committed", 10)]
    assert readings.shown(4) == 23

    readings.run()
    assert len(readings.epochs) == 4


@pytest.mark.alternating(2)
def test_input_of_a_prepared_epoch_is_not_read_again_after_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    readings = Readings(spark, tmp_path)
    for number in (1, 2):
        readings.put(f"{number}.json", rows=number)

    def fail(manifest: Manifest) -> None:
        raise RuntimeError("failed right after the commit decision")

    with pytest.raises(RuntimeError):
        readings.run(hooks=Hooks(fail))
    readings.put("later.json", rows=10)
    readings.run()
    assert readings.epochs == [("committed", 1), ("committed", 2), ("committed", 10)]
    assert readings.shown(3) == 13


def test_an_unbounded_source_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    endless = generator.source({"k": "'a'", "n": "1"}, rate=10)
    with pytest.raises(OptionError, match=r"Source 'in': .* Give generator\.source a bound"):
        Readings(spark, tmp_path).run(endless)


def test_an_application_stops_when_all_available_input_is_processed(plane: Plane) -> None:
    application = plane.application(available_now=True)
    execution = f"/v1/applications/flights/executions/{application['execution']}"
    assert plane.control.ledger.plan(application["execution"]).available_now
    assert plane.get(execution)["available_now"]

    driver = plane.driver()
    driver.running()
    driver.epoch()
    driver.catalog.finish(None)

    ended = plane.get("/v1/applications/flights")
    assert (ended["state"], ended["detail"]) == ("stopped", "finished: all available input is processed")
    assert plane.get(execution)["stop_requested_at"] is None
    again = plane.post("/v1/applications/flights/start", available_now=True)
    assert plane.get("/v1/applications/flights")["detail"] is None
    plane.driver().catalog.finish(None)
    assert plane.get(f"/v1/operations/{again['id']}")["state"] == "succeeded"
    plane.post("/v1/applications/flights/start")
    assert not plane.control.ledger.plan(plane.get("/v1/applications/flights")["execution"]).available_now


def test_a_restart_keeps_available_now(plane: Plane) -> None:
    plane.application(available_now=True)
    driver = plane.driver()
    driver.running()
    plane.post("/v1/applications/flights/restart")
    driver.stop()
    assert plane.control.ledger.plan(plane.get("/v1/applications/flights")["execution"]).available_now


class Started:
    """``epochal start flights --available-now`` in a thread, while the test is its driver."""

    def __init__(self, plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
        monkeypatch.setenv("EPOCHAL_TOKEN", plane.admin_token)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            main(["start", "flights", "--available-now"])
        except SystemExit as ended:
            self.code = int(ended.code or 0)

    def ended(self) -> int | None:
        self._thread.join(60)
        return self.code


@pytest.mark.parametrize(
    ("ends", "code", "expected"),
    [
        ("finished", 0, "flights is at epoch 1: finished: all available input is processed.\n"),
        ("failed", 1, "error: Application flights failed: the disk is lost\n"),
        ("stopped", 4, "epochal start flights --available-now"),
    ],
)
def test_the_start_command_waits_and_exits_by_the_result(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, ends: str, code: int, expected: str
) -> None:
    plane.application(start=False)
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        started = Started(plane, monkeypatch)
        while plane.get("/v1/applications/flights")["execution"] is None:
            assert started.code is None, output.getvalue()
        driver = plane.driver()
        driver.running()
        driver.epoch()
        if ends == "stopped":
            plane.post("/v1/applications/flights/stop")
            driver.stop()
        elif ends == "failed":
            driver.catalog.finish(FAILURE)
            plane.control.ledger.execution_ended(driver.execution, "failed", FAILURE)
        else:
            driver.catalog.finish(None)
        found = started.ended() or 0
    assert (found, expected in output.getvalue()) == (code, True), output.getvalue()
