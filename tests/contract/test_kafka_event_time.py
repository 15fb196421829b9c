"""Watermarks per partition of a topic, over a real broker: one that lags, and one that falls silent."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal import Pipeline
from epochal.connectors import console, kafka
from epochal.engine.execution import Hooks, run
from epochal.engine.settings import Configuration, ExecutionOrders
from epochal.snapshots.manifest import Manifest
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from epochal.testing.servers.kafka import KafkaServer
from tests.contract.test_kafka_source import send
from tests.delaying import delayed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = 1_000_000
HOUR = 3600
MOST_EPOCHS = 200


def test_a_partition_that_lags_holds_the_watermark_until_it_is_idle(
    kafka_server: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    topic = kafka_server.create_topic(partitions=2)
    ahead, behind = f"{topic}/0", f"{topic}/1"
    sent = Counter[str]()

    def produce(partition: int, *seconds: int) -> None:
        times = [(NOON + timedelta(seconds=each)).isoformat() for each in seconds]
        rows = [{"id": id, "ts": time} for id, time in enumerate(times, sent.total())]
        send(kafka_server, topic, [json.dumps(row).encode() for row in rows], partition)
        sent[f"{topic}/{partition}"] += len(rows)

    manifests: list[Manifest] = []

    def after(manifest: Manifest) -> None:
        """The backlog of the one partition for three epochs; the other goes on all the time."""
        manifests.append(manifest)
        if len(manifests) <= 3:
            produce(1, *range(-HOUR + 10 * len(manifests), -HOUR + 10 * len(manifests) + 5))
        produce(0, 100 + len(manifests))

    pipeline = Pipeline("lagging")
    events = pipeline.read("events", kafka.source(kafka_server.bootstrap, topic, schema="id bigint, ts timestamp"))
    timed = events.with_watermark("ts", "0 seconds", idle_after="2 seconds")
    delayed(timed, "kept").write("out", console.sink())
    produce(0, 0, 100)
    produce(1, -HOUR)

    def idle() -> bool:
        return bool(manifests) and manifests[-1].clock.partitions["ts"][behind].idle

    orders = ExecutionOrders(
        application="lagging",
        execution="one",
        attempt=1,
        artifact="a" * 64,
        configuration=Configuration(state_backend="heap", epoch_interval_seconds=0),
        store=str(tmp_path / "store"),
        cache_directory=str(tmp_path / "cache"),
    )
    hooks = Hooks(on_epoch=after, stop_requested=idle, epochs_limit=MOST_EPOCHS)
    run(orders, pipeline.graph(), spark, MemoryCatalog(MemoryCatalogState(), 1), hooks)

    assert idle(), "the partition never became idle"
    assert all(manifest.counts.late_rows == {} for manifest in manifests)
    held = [manifest.clock.places["kept"].fire for manifest in manifests[:-1]]
    first = int((NOON - timedelta(hours=1)).timestamp()) * SECOND
    assert max(held) <= first + 34 * SECOND, "the partition that lags was waited for"
    last = manifests[-1].clock
    assert last.partitions["ts"][behind].watermark == first + 34 * SECOND
    assert last.places["kept"].fire >= int(NOON.timestamp() + 100) * SECOND
    assert not last.partitions["ts"][ahead].idle
    read = sum(manifest.counts.rows_in for manifest in manifests)
    assert sent.total() - 1 <= read <= sent.total()
