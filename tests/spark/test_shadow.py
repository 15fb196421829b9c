"""A shadow execution has no sinks, and omits all computations that only sinks would read."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal.connectors import console, files
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.engine.execution import Hooks, run
from epochal.service.catalog.standalone import standalone_catalog

ARTIFACT = "0" * 64


def test_verbs_before_an_omitted_sink_are_omitted(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"k": "a", "v": 1}\n{"k": "a", "v": 2}\n')
    pipeline = Pipeline("shadow")
    rows = pipeline.read("rows", files.source(str(tmp_path / "rows.json"), format="json", schema="k string, v long"))
    spent = rows.key_by("k").aggregate("spent", total="sum(v)")
    spent.where("total > 1").with_columns(half="total / 2").write("out", console.sink())
    configuration = Configuration(epoch_interval_seconds=0.0, parallelism=2, master="local[2]")
    catalog = standalone_catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}", "shadow", ARTIFACT, configuration={})
    catalog.begin_attempt()
    orders = ExecutionOrders(
        application="shadow",
        execution=catalog.execution,
        attempt=catalog.attempt,
        artifact=ARTIFACT,
        configuration=configuration,
        store=str(tmp_path / "store"),
        cache_directory=str(tmp_path / "cache"),
        available_now=True,
        shadow=True,
    )
    epochs = []
    run(orders, pipeline.graph(), spark, catalog, Hooks(on_epoch=epochs.append))
    assert [epoch.counts.rows_in for epoch in epochs] == [2]
