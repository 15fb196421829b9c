"""Kafka as a sink under fault: drivers and tasks killed at every step, zombies, a broker that dies.

In every run a driver is killed at a step of each kind; the sink by itself crashes at each (test_sinks_crash.py).

One application writes in each epoch to two topics. A read_committed reader reads all the time: what it has once seen,
in the order in which it saw it, must be what is there in the end; an epoch's rows one after the other, each once.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import epochal.backends.kafka
from epochal.testing.drivers import SparkJvm
from epochal.testing.invariants import broken_lineage, orphans, unfinished_epochs
from epochal.testing.kafka_reading import Watcher, open_transactions, read_topic
from epochal.testing.oracle import multiset, slices
from epochal.testing.servers.kafka import KafkaServer
from tests.kit.waiting import eventually
from tests.service.fault.faulty_application import Drivers, FaultyApplication, check_that_a_zombie_changes_nothing
from tests.service.fault.points import LOG_POINTS, in_every_run, points_of

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).with_name("kafka_application.py")
AHEAD = 3


POINTS = sorted([*points_of(epochal.backends.kafka), *LOG_POINTS])
DRIVER_POINTS = [point for point in POINTS if not point.startswith("T")]
ONE_OF_EACH_CLASS = ("E5.kafka.marked", "R1.kafka.taken-over", "E5.kafka.marked", "E5.kafka.committed")
"""A transaction is open; the one before is fenced; again; the epoch is visible, and nobody knows it."""


class KafkaApplication(FaultyApplication):
    """The application, its topics, and what must be in them in the end."""

    kind = "kafka"
    pipeline = PIPELINE

    def __init__(self, folder: Path, drivers: Drivers, server: KafkaServer) -> None:
        super().__init__(folder, drivers, {"parallelism": 2, "compact_after_epochs": 1000})
        self.outputs = {}
        self.server = server
        self.rows = server.create_topic(prefix="rows")
        self.totals = server.create_topic(partitions=2, prefix="totals")
        self.watcher = Watcher(server.bootstrap, self.rows)

    @property
    def parameters(self) -> dict[str, Any]:
        topics = {"servers": self.server.bootstrap, "rows": self.rows, "totals": self.totals}
        return {"input": self.input, **topics}

    def violations(self) -> list[str]:
        """Everything that is wrong, once it has come to rest."""
        history = self.history
        found = [*unfinished_epochs(history), *broken_lineage(history), *orphans(history)]
        events = [slices(manifest)["events"] for _, manifest in history.snapshots]
        rows, totals = self.records(self.rows), self.records(self.totals)
        at = 0
        for epoch, wanted in enumerate(events, 1):
            there, at = rows[at : at + len(wanted)], at + len(wanted)
            if multiset(there) != multiset(wanted):
                found.append(f"{self.rows}: the rows of snapshot {epoch} are not there, once, in its place")
        found += [f"{self.rows}: {len(rows) - at} rows too many"] if len(rows) > at else []
        if multiset(totals) != multiset(expected_totals(events)):
            found.append(f"{self.totals}: {len(totals)} records, not those of every epoch once")
        seen = [json.loads(value or b"") for _, _, value in list(self.watcher.seen)]
        if seen != rows[: len(seen)]:
            found.append("the reader has seen what is not there, or in another order")
        for topic in (self.rows, self.totals):
            found += [f"{topic}: a transaction is open" for _ in open_transactions(self.server.bootstrap, topic)]
        return found

    def records(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(message.value() or b"") for message in read_topic(self.server.bootstrap, topic)]


def expected_totals(epochs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What the aggregate says in each epoch of the keys that it touched."""
    events: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    found = []
    for rows in epochs:
        for row in rows:
            events[row["sensor"]] += 1
            sums[row["sensor"]] += row["value"]
        for sensor in {row["sensor"] for row in rows}:
            found.append({"sensor": sensor, "events": events[sensor], "total": sums[sensor]})
    return found


@pytest.fixture
def application(tiered_drivers: Drivers, kafka_server: KafkaServer, tmp_path: Path) -> Iterator[KafkaApplication]:
    """After an epoch, with input for more."""
    application = KafkaApplication(tmp_path / "application", tiered_drivers, kafka_server)
    application.feed(1 + AHEAD)
    driver = application.start(epochs=1)
    assert driver.wait() == 0, driver.log_end()
    yield application
    application.watcher.stop()


def kill_at(application: KafkaApplication, point: str) -> None:
    application.kill_at(application.fault(point), epochs=AHEAD)


def goes_on(application: KafkaApplication) -> None:
    application.finish()
    assert application.files_left == 0
    assert application.violations() == []


@pytest.mark.long
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_the_driver_is_killed(application: KafkaApplication, point: str) -> None:
    kill_at(application, point)
    goes_on(application)


@pytest.mark.long  # recoveries are killed in test_kills.py, of the sinks in test_hdfs.py
def test_it_is_killed_again_while_it_recovers(application: KafkaApplication) -> None:
    """Killed with a transaction open, then again and again in recovery, where its commit is redone."""
    for point in ONE_OF_EACH_CLASS:
        kill_at(application, point)
    goes_on(application)


@pytest.mark.alternating(3)
def test_a_task_is_killed(application: KafkaApplication) -> None:
    """A task dies with its log durable and its handle on no way; it is run again."""
    fault = application.fault("T3.log.segment-durable", "kill", application.next_epoch)
    driver = application.start(task_faults=[fault], epochs=application.files_left, master="local[2,4]")
    assert driver.wait() == 0, driver.log_end()
    assert application.fired(fault)
    assert application.violations() == []


@pytest.mark.long  # of the sink by itself: contract/test_troubled_servers.py
@pytest.mark.parametrize("point", in_every_run(["E5.kafka.produced"], ["E5.kafka.produced", "E5.kafka.committed"]))
def test_the_broker_dies_during_a_commit(application: KafkaApplication, point: str) -> None:
    """Killed while a transaction is open, or as it was answered, and started again."""
    stop = application.fault(point, "stop", application.next_epoch + 1)
    driver = application.start(faults=[stop], epochs=application.files_left, tolerable_failed_epochs=1000)
    driver.wait_until(lambda: application.fired(stop))
    driver.wait_until_stopped()
    application.server.kill()
    driver.send(signal.SIGCONT)
    application.server.start()
    assert driver.wait() == 0, driver.log_end()
    assert application.violations() == []


@pytest.mark.parametrize("point", in_every_run(["E5.kafka.marked"], ["E5.kafka.marked", "E5.kafka.fenced"]))
def test_a_zombie_is_fenced(application: KafkaApplication, own_jvm: SparkJvm | None, point: str) -> None:
    """Stopped within its transaction, or as it took over, and continued past its successor's end."""
    check_that_a_zombie_changes_nothing(
        application, own_jvm, point, lambda: application.records(application.rows), application.violations
    )


def test_the_reader_sees_what_is_committed(application: KafkaApplication) -> None:
    application.finish()
    records = application.records(application.rows)
    eventually(lambda: len(application.watcher.seen) == len(records))
    assert application.violations() == []


@pytest.mark.long
def test_with_spark_it_is_killed_with_a_transaction_open(
    drivers: Drivers, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    application = KafkaApplication(tmp_path / "application", drivers, kafka_server)
    try:
        application.feed(2)
        kill_at(application, "E5.kafka.marked")
        goes_on(application)
    finally:
        application.watcher.stop()
