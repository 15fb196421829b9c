"""Epochal's engine in the process of the benchmark, as in ``epochal run`` but without output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks.sessions import CORES, DRIVER_MEMORY
from epochal.contracts.catalog import EpochRecord
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.engine.execution import Hooks, run
from epochal.engine.meter import Meter
from epochal.engine.session import create_session
from epochal.pipeline.pipeline import Pipeline
from epochal.service.catalog.standalone import standalone_catalog
from epochal.snapshots.chain import began_empty
from epochal.snapshots.manifest import Manifest

ARTIFACT = "0" * 64


@dataclass(frozen=True)
class EpochTime:
    """One epoch: its rows, the seconds from its trigger to its commit decision (E1 to E4), and its trigger."""

    rows: int
    seconds: float
    began: datetime


def configuration(folder: Path, **changes: object) -> Configuration:
    """Configuration of an application on this machine, without a pause between epochs."""
    spark = {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.log.level": "ERROR",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    values = {"epoch_interval_seconds": 0.0, "parallelism": CORES, "master": f"local[{CORES}]", "spark": spark}
    return Configuration.model_validate(values | changes)


@contextmanager
def engine_session(configuration: Configuration) -> Iterator[SparkSession]:
    """The session that a driver creates."""
    spark = create_session("benchmark", configuration)
    try:
        yield spark
    finally:
        spark.stop()


def run_epochs(
    pipeline: Pipeline,
    spark: SparkSession,
    folder: Path,
    configuration: Configuration,
    epochs: int,
    store: str | None = None,
    meter: Meter | None = None,
) -> list[EpochTime]:
    """Run ``epochs`` epochs, beginning where the last call with this ``folder`` stopped.

    ``store``: URL of the snapshot store; by default a folder in ``folder``.
    """
    records = _run(pipeline, spark, folder, configuration, Hooks(epochs_limit=epochs, meter=meter), store=store)
    return [_time(record) for record in records]


def run_rows(
    pipeline: Pipeline, spark: SparkSession, folder: Path, configuration: Configuration, rows: int
) -> list[EpochRecord]:
    """Run epochs until they have read ``rows`` rows, beginning where the last call with this ``folder`` stopped."""
    read = 0

    def count(manifest: Manifest) -> None:
        nonlocal read
        read += manifest.counts.rows_in

    return _run(pipeline, spark, folder, configuration, Hooks(on_epoch=count, stop_requested=lambda: read >= rows))


def run_available(
    pipeline: Pipeline, spark: SparkSession, folder: Path, configuration: Configuration
) -> list[EpochRecord]:
    """Run epochs until all input available at the start has been read and all loops are empty."""
    return _run(pipeline, spark, folder, configuration, Hooks(), available_now=True)


def _run(
    pipeline: Pipeline,
    spark: SparkSession,
    folder: Path,
    configuration: Configuration,
    hooks: Hooks,
    available_now: bool = False,
    store: str | None = None,
) -> list[EpochRecord]:
    folder.mkdir(parents=True, exist_ok=True)
    settings = configuration.model_dump(mode="json")
    catalog = standalone_catalog(
        f"sqlite:///{folder / 'catalog.sqlite'}", "benchmark", ARTIFACT, configuration=settings
    )
    catalog.begin_attempt()  # fences earlier attempts on the branch
    orders = ExecutionOrders(
        application="benchmark",
        execution=catalog.execution,
        attempt=catalog.attempt,
        artifact=ARTIFACT,
        configuration=configuration,
        store=store or str(folder / "store"),
        cache_directory=str(folder / "cache"),
        available_now=available_now,
    )
    seen: list[int] = []

    def note(manifest: Manifest) -> None:
        if lost := began_empty(manifest):
            raise RuntimeError(f"epoch {manifest.epoch}: state that is not durable was lost: {lost}")
        seen.append(manifest.epoch)
        hooks.on_epoch(manifest)

    run(orders, pipeline.graph(), spark, catalog, replace(hooks, on_epoch=note))
    return [record for record in map(catalog.epoch, seen) if record is not None]


def warm(times: list[EpochTime], skip: int = 2) -> float:
    """Median of the epochs after the first ``skip``, in which the JVM warms up."""
    return median(time.seconds for time in times[skip:])


def _time(record: EpochRecord) -> EpochTime:
    assert record.prepared_at is not None
    return EpochTime(record.rows_in or 0, (record.prepared_at - record.started_at).total_seconds(), record.started_at)


def between_begins(begins: Sequence[datetime], last: float) -> list[float]:
    """Seconds from the begin of each epoch to that of the next one, which includes all work between two epochs.

    ``last``: seconds of the last epoch, which none follows."""
    return [*((after - before).total_seconds() for before, after in pairwise(begins)), last]
