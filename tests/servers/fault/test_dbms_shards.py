"""A sink with shards under faults: its processes and drivers are killed, and the number of shards changes meanwhile.

Processes that are suspended, and drivers that end between two shards: tests/servers/contract/test_dbms_shards.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.testing.invariants import broken_lineage, orphans, unfinished_epochs
from epochal.testing.oracle import slices
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from tests.kit.servers import or_skipped
from tests.servers.fault.test_dbms import DatabaseApplication
from tests.service.fault.faulty_application import Drivers

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

OF_PROCESSES = ("E5.dbms.fence-moved", "E5.dbms.applied", "E5.dbms.shard-committed")
LIVES = ((2, "E5.dbms.committed"), (3, "R1.dbms.taken-over"), (1, "E5.log.removed"), (2, "R1.dbms.fence-ready"))
"""The numbers of shards of killed drivers, and the points at which these are killed."""


class ShardedApplication(DatabaseApplication):
    kind = "dbms_shards"
    pipeline = Path(__file__).with_name("dbms_shards_application.py")
    shards = 2

    @property
    def parameters(self) -> dict[str, Any]:
        return {**super().parameters, "shards": self.shards}

    def violations(self) -> list[str]:
        history = self.history
        found = [*unfinished_epochs(history), *broken_lineage(history), *orphans(history)]
        events = [row for _, manifest in history.snapshots for row in slices(manifest)["events"]]
        expected = Counter((row["event"], row["sensor"], row["value"]) for row in events)
        shown = Counter(self.query("SELECT event, sensor, value FROM spread_rows"))
        if shown != expected:
            found.append(f"spread_rows: {len(expected - shown)} rows missing, {len(shown - expected)} too many")
        counts, sums = Counter(row["sensor"] for row in events), Counter[str]()
        for row in events:
            sums[row["sensor"]] += row["value"]
        totals = {sensor: (count, sums[sensor]) for sensor, count in counts.items()}
        in_table = {sensor: (count, total) for sensor, count, total in self.query("SELECT * FROM totals")}
        if in_table != totals:
            found.append(f"totals: {in_table} instead of {totals}")
        last = history.snapshots[-1][0].epoch
        for sink, shard, epoch in self.query("SELECT sink, shard, epoch FROM _epochal_fence"):
            if epoch != last:
                found.append(f"the fence of shard {shard} of {sink} is at {epoch}, not at {last}")
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    yield from or_skipped(postgresql())


@pytest.fixture
def application(tiered_drivers: Drivers, server: PostgresqlServer, tmp_path: Path) -> ShardedApplication:
    return ShardedApplication(tmp_path / "application", tiered_drivers, server)


def test_killed_processes_of_shards_are_replaced_by_the_same_driver(application: ShardedApplication) -> None:
    application.feed(1 + len(OF_PROCESSES))
    faults = [application.fault(point, "kill", 2 + number) for number, point in enumerate(OF_PROCESSES)]
    driver = application.start(faults=faults, epochs=application.files_left)
    assert driver.wait() == 0, driver.log_end()
    assert [fault.point for fault in faults if not application.fired(fault)] == []
    assert "the process of the shard ended with exit code -9" in driver.log_end(100_000)
    assert application.violations() == []


def test_number_of_shards_changes_with_each_killed_driver(application: ShardedApplication) -> None:
    application.feed(2 * len(LIVES))
    for shards, point in LIVES:
        application.shards = shards
        application.kill_at(application.fault(point), epochs=2)
    application.shards = 4
    application.finish()
    assert application.files_left == 0
    assert application.violations() == []
    assert application.query("SELECT count(*) FROM _epochal_fence") == [(8,)]
