"""A later version of an application whose stream has a column that the table lacks (``add_columns=True``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal import Pipeline
from epochal.connectors import delta, files, iceberg
from epochal.errors import SchemaError
from epochal.pipeline.analysis import analyse
from epochal.pipeline.definitions import SinkDefinition
from tests.kit.delta_tables import DeltaFolder
from tests.kit.iceberg_tables import sqlite_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SinkOfTable = Callable[..., SinkDefinition]


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[SinkOfTable, Callable[[], list[dict[str, Any]]]]:
    """The sink of a table, and what readers see."""
    if request.param == "delta":
        folder = DeltaFolder(tmp_path / "orders")
        return lambda **options: delta.sink(str(folder.path), **options), folder.visible
    orders = sqlite_catalog(tmp_path / "tables")
    catalog = orders.address.catalog.described
    return lambda **options: iceberg.sink(orders.address.table, catalog=catalog, **options), orders.visible


def test_versions_with_and_without_the_column_follow_each_other(
    spark: SparkSession, tmp_path: Path, table: tuple[SinkOfTable, Callable[[], list[dict[str, Any]]]]
) -> None:
    sink, visible = table
    rows = tmp_path / "rows"
    rows.mkdir()

    def version(sink: SinkDefinition, **columns: str) -> Pipeline:
        pipeline = Pipeline("orders")
        source = files.source(str(rows), format="json", schema="id bigint")
        stream = pipeline.read("rows", source).where("id >= 0")
        (stream.with_columns(**columns) if columns else stream).write("out", sink)
        return pipeline

    def run(pipeline: Pipeline, id: int) -> None:
        (rows / f"{id}.json").write_text(json.dumps({"id": id}) + "\n")
        settings = {"parallelism": 1, "epoch_interval_seconds": 0}
        pipeline.run(available_now=True, directory=tmp_path / "state", configuration=settings, spark=spark)

    added = {"amount": "id * 1.5D", "tags": "array('a')", "at": "timestamp'2026-01-01'"}
    run(version(sink()), 1)
    with pytest.raises(SchemaError, match="add_columns=True"):
        analyse(version(sink(), **added).graph(), spark)
    later = version(sink(add_columns=True), **added)
    warnings = analyse(later.graph(), spark).description.warnings
    assert any("which the start of this version adds: amount (double), tags (" in text for text in warnings)
    assert analyse(later.graph(), spark, connected=False).description.warnings == ()
    run(later, 2)
    run(version(sink()), 3)
    found = [{name: row[name] for name in ("id", "amount", "tags")} for row in visible()]
    assert sorted(found, key=lambda row: int(row["id"])) == [
        {"id": 1, "amount": None, "tags": None},
        {"id": 2, "amount": 3.0, "tags": ["a"]},
        {"id": 3, "amount": None, "tags": None},
    ]
