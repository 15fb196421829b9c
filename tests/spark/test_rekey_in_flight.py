"""Re-keying writes only state. Records of loops stay in flight; a snapshot with other records in flight is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline, ValueState
from epochal.connectors import console
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.identity import EpochKey
from epochal.contracts.source import Slice, SliceLimits
from epochal.engine.rekey import rekey
from epochal.errors import IncompatibleState
from epochal.pipeline.definitions import SourceDefinition
from epochal.snapshots.in_flight import InternalSource
from epochal.snapshots.manifest import FileInFlight, FileReference, Manifest, RecordsInFlight
from epochal.snapshots.store import SnapshotStore
from tests.kit.graphs import components
from tests.kit.manifests import plain_manifest


class Flying(InternalSource):
    """Always has records in flight."""

    kind = "test-loop"

    def schema(self, spark: SparkSession) -> Any:
        return spark.range(0).schema

    def read(self, spark: SparkSession, slice: Slice) -> Any:
        raise NotImplementedError

    def slice_of(self, parent: Manifest | None, limits: SliceLimits) -> Slice | None:
        return Slice(start={}, end={})


@pytest.fixture
def orders(tmp_path: Path) -> ExecutionOrders:
    return ExecutionOrders(
        application="loop",
        execution="one",
        attempt=1,
        artifact="a" * 64,
        configuration=Configuration(max_parallelism=64),
        store=str(tmp_path),
        cache_directory=str(tmp_path / "cache"),
    )


def test_records_in_flight_are_not_lost_by_a_rekey(spark: SparkSession, orders: ExecutionOrders) -> None:
    pipeline = Pipeline("loop")
    pipeline.read("ranks", SourceDefinition("test-loop", Flying)).write("out", console.sink())
    store = SnapshotStore(orders.store)
    reference = store.write_manifest(plain_manifest(1, application="loop", parallelism=2, max_parallelism=128))
    with pytest.raises(IncompatibleState, match="records in flight in ranks"):
        rekey(orders, pipeline.graph(), spark, reference, EpochKey("rekeyed", 2))
    parts = ValueState("n bigint", scope="partial", reconcile="sum")
    parts.name = "parts"
    tables = (parts.table("parts", ()),)
    reference = store.write_manifest(
        plain_manifest(1, application="loop", parallelism=4, max_parallelism=128, tables=tables)
    )
    with pytest.raises(IncompatibleState, match=r"'parts.parts' is partial state, with 4 instances: rescale .* to 2"):
        rekey(orders, pipeline.graph(), spark, reference, EpochKey("rekeyed", 2))
    assert store.list("rekeyed") == []


def test_the_records_of_a_loop_stay_in_flight(spark: SparkSession, orders: ExecutionOrders) -> None:
    graph = components().graph()
    store = SnapshotStore(orders.store)
    file = FileReference(
        path="main/loops/0000000001/messages-00000-" + "0" * 32 + ".parquet", sha256="0" * 64, bytes=1, rows=3
    )
    held = RecordsInFlight(
        columns=graph.columns_of_loops["messages"], files=(FileInFlight(file=file, first=1, last=3),), hop=2
    )
    head = plain_manifest(1, application="loop", parallelism=2, max_parallelism=128, loops={"messages": held})
    rekeyed = store.read_manifest(rekey(orders, graph, spark, store.write_manifest(head), EpochKey("rekeyed", 2)))
    assert rekeyed.loops == {"messages": held} and rekeyed.max_parallelism == 64
