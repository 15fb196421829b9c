"""Kafka on one broker: the sink compared with an idempotent producer, the source with consumers, a small commit.

The producer and the sink have the same batches, linger time, buffers, acknowledgements and compression (none), and
alternate. Both are measured from the first row in memory until all records are acknowledged. For the sink this includes
its write-ahead log and the transaction.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa
from confluent_kafka import Producer

from benchmarks import engine
from benchmarks.result import Result, at_least, at_most, in_turns, number, percentile
from epochal import Pipeline
from epochal.backends.kafka.producers import LARGEST_BATCH
from epochal.connectors import kafka
from epochal.contracts.backend import SinkPlace
from epochal.contracts.identity import EpochKey, EpochScope, TaskScope
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.kafka import KafkaServer
from epochal.testing.servers.kafka import kafka as kafka_server

ROWS, RECORD_BYTES, BATCH_ROWS, TURNS = 500_000, 100, 10_000, 3
SMALL_EPOCHS, SMALL_ROWS, WARM = 60, 1_000, 10
PARTITIONS = 2
READ_ROWS, READ_EPOCHS, READ_WARM, READ_TURNS, KEYS = 1_000_000, 6, 3, 3, 10_000
JSON_SCHEMA = "id bigint, name string, amount double, city string, flag boolean"


def run(folder: Path) -> list[Result]:
    with kafka_server() as server:
        return [*sink(server, folder), *source(server, folder)]


def sink(server: KafkaServer, folder: Path) -> list[Result]:
    commits, whole, bare = list[float](), list[float](), list[float]()
    written = Sink(server, folder)
    topic = server.create_topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": server.bootstrap, **PRODUCER})
    values = [record(number) for number in range(ROWS)]

    def ours() -> None:
        prepare, commit = written.epoch(values)
        commits.append(commit)
        whole.append(prepare + commit)

    def theirs() -> None:
        bare.append(seconds(lambda: produce(producer, topic, values)))

    for turn in range(TURNS + 1):
        for way in (ours, theirs)[:: -1 if turn % 2 else 1]:
            way()
    small = [written.epoch(values[:SMALL_ROWS])[1] for _ in range(SMALL_EPOCHS)]
    # The first turn creates connections and segments.
    commit_rate, whole_rate, bare_rate = (ROWS / percentile(times[1:], 0.5) for times in (commits, whole, bare))
    how = f"{ROWS:,} records of {RECORD_BYTES} bytes an epoch, {PARTITIONS} partitions; p50 of {TURNS} turns"
    batching = f"acks all, linger {PRODUCER['linger.ms']} ms, batches of {LARGEST_BATCH:,} bytes, uncompressed"
    return [
        at_least("Kafka sink, exactly once", commit_rate, 150_000, "records/s", f"E5 only; {how}", digits=0),
        number("Kafka sink, from the first row to the commit", whole_rate, "records/s", "one task, no Spark", digits=0),
        number("bare idempotent producer", bare_rate, "records/s", f"the same records; {batching}", digits=0),
        in_turns("Kafka sink, from the first row / bare idempotent producer", bare[1:], whole[1:], least=0.6),
        at_most(
            "Kafka sink, commit of a small epoch, p50",
            percentile([each * 1000 for each in small[WARM:]], 0.5),
            150,
            "ms",
            f"{SMALL_ROWS:,} records",
            digits=1,
        ),
    ]


def source(server: KafkaServer, folder: Path) -> list[Result]:
    """Measure alternating rounds over the same records; each begins with epochs in which the JVM warms up."""
    text, json = (filled(server, make) for make in (record, json_record))
    counted = Pipeline("benchmark")
    records = counted.read("records", kafka.source(server.bootstrap, text, "string", metadata=["key"]))
    records.key_by("key").aggregate("counts", records="count(*)")
    summed = Pipeline("benchmark")
    values = summed.read("records", kafka.source(server.bootstrap, json, "json", JSON_SCHEMA))
    values.key_by("city").aggregate("amounts", amount="sum(amount)")

    settings = engine.configuration(folder / "epochal", max_records_per_epoch=READ_ROWS)
    bare, ours, of_json = list[float](), list[float](), list[float]()
    with engine.engine_session(settings) as spark:
        for turn in range(READ_TURNS):
            bare.append(READ_ROWS * READ_EPOCHS / consume(server, text))
            for rates, pipeline, name in ((ours, counted, "text"), (of_json, summed, "json")):
                place = folder / "epochal" / f"{name}-{turn}"
                times = engine.run_epochs(pipeline, spark, place, settings, READ_EPOCHS)
                rates.append(READ_ROWS / engine.warm(times, READ_WARM))
    ratios = [our / their for our, their in zip(ours, bare, strict=True)]
    json_ratios = [our / their for our, their in zip(of_json, ours, strict=True)]
    how = f"{READ_ROWS:,} records of {RECORD_BYTES} bytes an epoch, {KEYS:,} keys, trigger to prepared"
    return [
        number("Kafka source into a keyed aggregate", median(ours), "records/s", how, digits=0),
        number("bare consumers", median(bare), "records/s", f"{PARTITIONS} processes, value and key taken", digits=0),
        at_least("Kafka source and aggregate / bare consumers", median(ratios), 0.7, "x", bounds(ratios)),
        number("Kafka source of JSON into a keyed aggregate", median(of_json), "records/s", JSON_SCHEMA, digits=0),
        number("Kafka source of JSON / of text", median(json_ratios), "x", bounds(json_ratios)),
    ]


def filled(server: KafkaServer, value: Callable[[int], bytes]) -> str:
    """Create a topic with the records of all epochs."""
    topic = server.create_topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number_ in range(READ_ROWS * READ_EPOCHS):
        if number_ % BATCH_ROWS == 0:
            producer.flush()
        producer.produce(topic, value(number_), b"%d" % (number_ % KEYS), number_ % PARTITIONS)
    producer.flush()
    return topic


def bounds(ratios: Sequence[float]) -> str:
    return f"least {min(ratios):.2f}, greatest {max(ratios):.2f} of {len(ratios)} alternating rounds"


class Sink:
    """``kafka.sink`` without Spark: the work of its one task and of the driver in an epoch."""

    def __init__(self, server: KafkaServer, folder: Path) -> None:
        definition = kafka.sink(server.bootstrap, server.create_topic(PARTITIONS), format="raw")
        self.backend = definition.make(SinkPlace("out", SnapshotStore(str(folder / "store"))))
        self.backend.recover(self._scope(0))
        self._epoch = 0

    def epoch(self, values: Sequence[bytes]) -> tuple[float, float]:
        """Run one epoch. Returns the seconds of T1 to T3 and of E5."""
        self._epoch += 1
        scope = self._scope(self._epoch)
        batches = pa.table({"value": pa.array(values, pa.binary())}).to_batches(max_chunksize=BATCH_ROWS)
        started = time.perf_counter()
        transaction = self.backend.start(TaskScope(scope, "out", 0))
        for batch in batches:
            transaction.write(batch)
        handle = transaction.pre_commit()
        prepared = time.perf_counter()
        self.backend.commit(scope, [handle])
        return prepared - started, time.perf_counter() - prepared

    def _scope(self, epoch: int) -> EpochScope:
        return EpochScope("bench", EpochKey("bench", epoch), 1, EpochKey("bench", epoch - 1) if epoch > 1 else None)


PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "none",
    "linger.ms": 5,
    "batch.size": LARGEST_BATCH,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
    "delivery.report.only.error": True,
}
"""Settings of the sink's producer, without transactions."""


def produce(producer: Producer, topic: str, values: Sequence[bytes]) -> None:
    """The best program found without exactly-once delivery across failures of the process.

    One producer for all turns, as in the sink, and a call of ``produce`` for each record, because ``produce_batch`` is
    not faster.
    """
    send = producer.produce
    for value in values:
        try:
            send(topic, value)
        except BufferError:
            _wait_and_send(producer, topic, value)
    if producer.flush():
        raise RuntimeError("records were not acknowledged")


def _wait_and_send(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        producer.poll(0.05)
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            continue


CONSUMER = """
import sys
from confluent_kafka import Consumer, TopicPartition
servers, topic, partition, expected = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
settings = {"group.id": "bare", "auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 5}
consumer = Consumer({"bootstrap.servers": servers, **settings})
consumer.assign([TopicPartition(topic, partition, 0)])
consumer.list_topics(topic)
print("ready", flush=True)
sys.stdin.readline()
found = 0
while found < expected:
    messages = consumer.consume(10_000, 0.05)
    rows = [(message.value(), message.key()) for message in messages]
    found += len(rows)
"""


def consume(server: KafkaServer, topic: str) -> float:
    """Seconds of one process for each partition, as Spark's Python workers, without their start."""
    expected = READ_ROWS * READ_EPOCHS // PARTITIONS
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONSUMER, server.bootstrap, topic, str(partition), str(expected)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for partition in range(PARTITIONS)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    started = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        if process.wait():
            raise RuntimeError("a bare consumer failed")
    return time.perf_counter() - started


def record(number: int) -> bytes:
    return b"%0100d" % number


def json_record(number: int) -> bytes:
    """A JSON record of about the length of :func:`record`."""
    text = b'{"id": %d, "name": "name %d", "amount": %d.25, "city": "city-%d", "flag": true}'
    return text % (number, number % 977, number % 9973, number % 50)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
