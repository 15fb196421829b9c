"""Event time on a real broker: a lagging partition, an idle partition, and bounded topics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from epochal import Pipeline, tumbling
from epochal.connectors import console, dbms, files, kafka
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.engine.execution import Hooks, run
from epochal.snapshots.manifest import Manifest
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState
from epochal.testing.servers.kafka import KafkaServer
from tests.kit.delaying import delayed
from tests.servers.contract.test_kafka_source import send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.server, pytest.mark.slow]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = 1_000_000
HOUR = 3600
MAX_EPOCHS = 200


def orders(folder: Path, attempt: int = 1) -> ExecutionOrders:
    return ExecutionOrders(
        application="timed",
        execution="one",
        attempt=attempt,
        artifact="a" * 64,
        configuration=Configuration(state_backend="heap", epoch_interval_seconds=0),
        store=str(folder / "store"),
        cache_directory=str(folder / "cache"),
    )


def lines_below(folder: Path) -> Iterator[str]:
    for path in folder.rglob("epoch=*/*.json"):
        yield from path.read_text().splitlines()


@pytest.mark.long  # unit/test_event_time.py covers files
def test_lagging_partition_holds_the_watermark_until_it_is_idle(
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

    def on_epoch(manifest: Manifest) -> None:
        """Add to the lagging partition for three epochs, and to the other in every epoch."""
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

    hooks = Hooks(on_epoch=on_epoch, stop_requested=idle, epochs_limit=MAX_EPOCHS)
    run(orders(tmp_path), pipeline.graph(), spark, MemoryCatalog(MemoryCatalogState(), 1), hooks)

    assert idle(), "the partition never became idle"
    assert all(manifest.counts.late_rows == {} for manifest in manifests)
    watermarks = [manifest.clock.places["kept"].fire for manifest in manifests[:-1]]
    first = int((NOON - timedelta(hours=1)).timestamp()) * SECOND
    assert max(watermarks) <= first + 34 * SECOND, "the watermark passed the lagging partition"
    last = manifests[-1].clock
    assert last.partitions["ts"][behind].watermark == first + 34 * SECOND
    assert last.places["kept"].fire >= int(NOON.timestamp() + 100) * SECOND
    assert not last.partitions["ts"][ahead].idle
    read = sum(manifest.counts.rows_in for manifest in manifests)
    assert sent.total() - 1 <= read <= sent.total()


@pytest.mark.long
def test_bounded_topic_and_table_drain_the_application(
    kafka_server: KafkaServer, spark: SparkSession, tmp_path: Path
) -> None:
    topic, empty = kafka_server.create_topic(partitions=2), kafka_server.create_topic()
    clicks = [{"id": id, "ts": NOON.isoformat()} for id in range(7)]
    database = sa.create_engine(f"sqlite:///{tmp_path / 'in.sqlite'}")
    tables = [sa.Table(name, sa.MetaData(), sa.Column("id", sa.BigInteger)) for name in ("views", "none")]

    def insert(kafka_rows: list[dict[str, Any]], ids: range) -> None:
        send(kafka_server, topic, [json.dumps(row).encode() for row in kafka_rows])
        with database.begin() as connection:
            connection.execute(tables[0].insert(), [{"id": id} for id in ids])

    for table in tables:
        table.create(database)
    insert(clicks, range(5))

    schema, url = "id bigint, ts timestamp", f"sqlite:///{tmp_path / 'in.sqlite'}"
    pipeline = Pipeline("ended")
    sources = {
        "clicks": kafka.source(kafka_server.bootstrap, topic, schema=schema, bounded=True),
        "no_clicks": kafka.source(kafka_server.bootstrap, empty, schema=schema, bounded=True),
        "views": dbms.source(url, "views", "id", settle_seconds=0, bounded=True),
        "no_views": dbms.source(url, "none", "id", settle_seconds=0, bounded=True),
    }
    noon = f"timestamp_seconds({int(NOON.timestamp())}) AS at"
    timed = [
        pipeline.read(name, source)
        .select("id", f"'{name}' AS source", noon)
        .with_watermark("at", "1 hour", name=f"at_{name}")
        for name, source in sources.items()
    ]
    both = timed[0].union(*timed[1:])
    hours = both.key_by("source").window(tumbling("1 hour")).aggregate("hours", n="count(*)")
    hours.write("hours", files.sink(str(tmp_path / "hours"), format="json"))
    catalog, manifests = MemoryCatalogState(), list[Manifest]()

    def on_epoch(manifest: Manifest) -> None:
        manifests.append(manifest)
        insert([{"id": 100, "ts": NOON.isoformat()}], range(100, 101))

    hooks = Hooks(on_epoch=on_epoch, epochs_limit=MAX_EPOCHS)
    run(orders(tmp_path), pipeline.graph(), spark, MemoryCatalog(catalog, 1), hooks)
    assert [manifest.drained for manifest in manifests] == [*[False] * (len(manifests) - 1), True]
    assert sum(manifest.counts.rows_in for manifest in manifests) == len(clicks) + 5
    written = [json.loads(line) for line in lines_below(tmp_path / "hours")]
    assert sorted((row["source"], row["n"]) for row in written) == [("clicks", 7), ("views", 5)]

    epochs = len(manifests)
    run(orders(tmp_path, 2), pipeline.graph(), spark, MemoryCatalog(catalog, 2), hooks)
    assert len(manifests) == epochs, "an epoch followed the last"
