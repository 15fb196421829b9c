"""Epochal's engine in the process of the benchmark: what ``epochal run`` does, without a person to print for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from epochal.contracts.catalog import EpochRecord
from epochal.engine.execution import Hooks, run
from epochal.engine.session import create_session
from epochal.engine.settings import Configuration, ExecutionOrders
from epochal.pipeline.pipeline import Pipeline
from epochal.service.catalog.standalone import standalone_catalog

NO_PAUSE = {"epoch_interval_seconds": 0.0, "parallelism": 2}
SPARK = {"spark.driver.memory": "4g", "spark.log.level": "ERROR"}


@dataclass(frozen=True)
class EpochTime:
    """One epoch: its rows and the seconds from its trigger to its commit decision (E1 to E4)."""

    rows: int
    seconds: float


@contextmanager
def engine_session(folder: Path, configuration: Configuration) -> Iterator[SparkSession]:
    """The session that a driver would make."""
    places = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = create_session("benchmark", configuration.model_copy(update={"spark": SPARK | places}))
    try:
        yield spark
    finally:
        spark.stop()


def run_epochs(
    pipeline: Pipeline, spark: SparkSession, folder: Path, configuration: Configuration, epochs: int
) -> list[EpochTime]:
    """Run so many epochs, from nothing or from where the last call with this ``folder`` stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = standalone_catalog(f"sqlite:///{folder / 'catalog.sqlite'}", "benchmark", "0" * 64)
    orders = ExecutionOrders(
        application="benchmark",
        execution=catalog.execution,
        attempt=catalog.attempt,
        artifact="0" * 64,
        configuration=configuration,
        store=str(folder / "store"),
        cache_directory=str(folder / "cache"),
    )
    seen: list[int] = []
    run(
        orders,
        pipeline.graph(),
        spark,
        catalog,
        Hooks(lambda manifest: seen.append(manifest.epoch), epochs_limit=epochs),
    )
    records = [catalog.epoch(number) for number in seen]
    return [_time(record) for record in records if record is not None]


def _time(record: EpochRecord) -> EpochTime:
    assert record.prepared_at is not None
    return EpochTime(record.rows_in or 0, (record.prepared_at - record.started_at).total_seconds())
