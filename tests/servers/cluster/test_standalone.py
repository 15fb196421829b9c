"""A Spark standalone cluster with two executors: a speculative task runs twice and an executor is killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.testing.invariants import violations
from epochal.testing.servers.spark_standalone import StandaloneCluster, standalone_cluster
from tests.kit.servers import or_skipped
from tests.service.fault.faulty_application import Drivers, FaultyApplication

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.server, pytest.mark.timeout(900)]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "3",
    "spark.speculation.minTaskRuntime": "2s",
}
EXECUTORS = {"spark.executor.cores": "2", "spark.executor.memory": "512m", "spark.cores.max": "4"}
EPOCHS = 7
ROWS = 200


def event(number: int) -> dict[str, object]:
    """50 sensors, so that each subtask has some in every epoch."""
    return {"event": number, "sensor": f"s{number % 50}", "value": number * 37 % 100}


def test_speculation_and_a_killed_executor_lose_no_rows(cluster: StandaloneCluster, tmp_path: Path) -> None:
    configuration = {"parallelism": 4, "compact_after_epochs": 1000, **SPECULATION, **EXECUTORS}
    application = FaultyApplication(tmp_path, Drivers(), configuration)
    for first in range(0, EPOCHS * ROWS, ROWS):
        application.feed_rows([event(number) for number in range(first, first + ROWS)])
    twice = application.fault("T3.pre-committed", "delay", epoch=3, seconds=60)
    interrupted = application.fault("T2.processed", "delay", epoch=5, seconds=10)
    driver = application.start(task_faults=[twice, interrupted], epochs=EPOCHS, master=cluster.master_url)
    try:
        driver.wait_until(lambda: application.fired(interrupted))
        executors = {call.executor for call in application.calls}
        os.kill(cluster.executors()[0], signal.SIGKILL)
        assert driver.wait() == 0, driver.log_end()
    finally:
        driver.kill()

    assert len(executors) == 2
    log = driver.log.read_text()
    assert re.search(r"E7 retain: epoch \S+/3: [1-9]\d* files of lost tasks removed", log)
    assert application.files_left == 0
    # The next attempt sweeps files that a lost task wrote after the last sweep.
    application.feed_rows([event(number) for number in range(EPOCHS * ROWS, (EPOCHS + 1) * ROWS)])
    application.finish()
    assert violations(application.history, application.oracles) == []


@pytest.fixture
def empty_cluster() -> Iterator[StandaloneCluster]:
    yield from or_skipped(standalone_cluster(workers=0, cores=2))


def test_an_application_without_executors_waits_and_goes_on_when_one_comes(
    empty_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    application = FaultyApplication(tmp_path, Drivers(), {"parallelism": 2, **EXECUTORS})
    application.feed_rows([event(number) for number in range(ROWS)])
    driver = application.start(epochs=1, master=empty_cluster.master_url)
    try:
        driver.wait_until(lambda: "waiting for executors since" in driver.log_end())
        assert application.status.phase == "waiting" and application.epochs == []
        empty_cluster.add_worker()
        assert driver.wait() == 0, driver.log_end()
    finally:
        driver.kill()
    assert violations(application.history, application.oracles) == []
