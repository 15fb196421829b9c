"""Kafka as a sink under faults: drivers and tasks killed at every step, zombies, a broker that dies.

Usual runs kill a driver at one step of each kind; test_sinks_crash.py crashes the sink alone at each.

One application writes in each epoch to two topics. The records that a concurrent read_committed consumer receives, and
their order, must equal the final contents; the rows of an epoch are contiguous, each once.
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
"""A transaction is open, twice; the predecessor is fenced; the epoch is visible but not recorded as committed."""


class KafkaApplication(FaultyApplication):
    """The application, its topics, and checks of their contents."""

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
        """Return all violations after the end of the application."""
        history = self.history
        found = [*unfinished_epochs(history), *broken_lineage(history), *orphans(history)]
        events = [slices(manifest)["events"] for _, manifest in history.snapshots]
        rows, totals = self.records(self.rows), self.records(self.totals)
        at = 0
        for epoch, expected in enumerate(events, 1):
            found_rows, at = rows[at : at + len(expected)], at + len(expected)
            if multiset(found_rows) != multiset(expected):
                found.append(f"{self.rows}: the rows of snapshot {epoch} are missing, duplicate or in another place")
        found += [f"{self.rows}: {len(rows) - at} rows too many"] if len(rows) > at else []
        if multiset(totals) != multiset(expected_totals(events)):
            found.append(f"{self.totals}: {len(totals)} records, not the totals of each epoch once")
        seen = [json.loads(value or b"") for _, _, value in list(self.watcher.seen)]
        if seen != rows[: len(seen)]:
            found.append("the reader has received other records, or in another order")
        for topic in (self.rows, self.totals):
            found += [f"{topic}: a transaction is open" for _ in open_transactions(self.server.bootstrap, topic)]
        return found

    def records(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(message.value() or b"") for message in read_topic(self.server.bootstrap, topic)]


def expected_totals(epochs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the aggregate's output in each epoch: the totals of changed keys."""
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
    """An application after one epoch, with input for further epochs."""
    application = KafkaApplication(tmp_path / "application", tiered_drivers, kafka_server)
    application.feed(1 + AHEAD)
    driver = application.start(epochs=1)
    assert driver.wait() == 0, driver.log_end()
    yield application
    application.watcher.stop()


def kill_at(application: KafkaApplication, point: str) -> None:
    application.kill_at(application.fault(point), epochs=AHEAD)


def finish_and_check(application: KafkaApplication) -> None:
    application.finish()
    assert application.files_left == 0
    assert application.violations() == []


@pytest.mark.long
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_killed_driver_leaves_a_correct_topic(application: KafkaApplication, point: str) -> None:
    kill_at(application, point)
    finish_and_check(application)


@pytest.mark.long  # test_kills.py and test_hdfs.py kill recoveries in usual runs
def test_driver_killed_repeatedly_leaves_a_correct_topic(application: KafkaApplication) -> None:
    """The driver is killed during a transaction, and repeatedly during recovery, which redoes the commit."""
    for point in ONE_OF_EACH_CLASS:
        kill_at(application, point)
    finish_and_check(application)


@pytest.mark.alternating(3)
def test_killed_task_writes_its_log_again(application: KafkaApplication) -> None:
    """A task dies with a durable log and before it returns its handle; it is retried."""
    fault = application.fault("T3.log.segment-durable", "kill", application.next_epoch)
    driver = application.start(task_faults=[fault], epochs=application.files_left, master="local[2,4]")
    assert driver.wait() == 0, driver.log_end()
    assert application.fired(fault)
    assert application.violations() == []


@pytest.mark.long  # contract/test_network_faults.py covers the sink alone
@pytest.mark.parametrize("point", in_every_run(["E5.kafka.produced"], ["E5.kafka.produced", "E5.kafka.committed"]))
def test_commit_survives_the_death_of_the_broker(application: KafkaApplication, point: str) -> None:
    """The broker is killed during a transaction or after its commit, and restarted."""
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
def test_zombie_is_fenced_by_kafka(application: KafkaApplication, own_jvm: SparkJvm | None, point: str) -> None:
    """The driver is paused in its transaction or takeover, and resumed after its successor's end."""
    check_that_a_zombie_changes_nothing(
        application, own_jvm, point, lambda: application.records(application.rows), application.violations
    )


def test_reader_receives_all_committed_records(application: KafkaApplication) -> None:
    application.finish()
    records = application.records(application.rows)
    eventually(lambda: len(application.watcher.seen) == len(records))
    assert application.violations() == []


@pytest.mark.long
def test_driver_with_spark_is_killed_in_a_transaction(
    drivers: Drivers, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    application = KafkaApplication(tmp_path / "application", drivers, kafka_server)
    try:
        application.feed(2)
        kill_at(application, "E5.kafka.marked")
        finish_and_check(application)
    finally:
        application.watcher.stop()
