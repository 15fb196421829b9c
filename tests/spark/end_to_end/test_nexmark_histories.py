"""Ten Nexmark queries as applications with late events. Their drivers are killed; they are rescaled and forked.

The final output of each application and of its fork equals the oracle, which has no epochs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from epochal.client import Client
from epochal.client.applications import ApplicationHandle
from epochal.connectors import nexmark
from epochal.testing.servers.control_plane import control_plane, process_id
from examples.nexmark.oracles import answer
from tests.kit.waiting import eventually
from tests.spark.end_to_end.test_nexmark import FOLDER, newest, sorted_rows

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

TEN = ("q3", "q4", "q5", "q7", "q8", "q9", "q11", "q16", "q18", "q20")
EVENTS, EPOCHS, SECONDS = 6000, 20, 300
OPTIONS: dict[str, Any] = {
    "events": EVENTS,
    "events_per_second": 2,
    "first_event_at": "2015-07-14T23:30:00Z",
    "partitions": 2,
    "skew": "2 minutes",
    "late_share": 0.05,
    "late_by": "90 seconds",
}
DELAY = timedelta(seconds=100)
"""The delay of watermarks. No event is late."""
CONFIGURATION = {
    "max_records_per_epoch": EVENTS // EPOCHS,
    "epoch_interval_seconds": 0.5,
    "restart": {"backoff_seconds": 0.1},
}
KILLED_AFTER = FORKED_AT = 4
RESCALED_AFTER = 8


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with control_plane(tmp_path_factory.mktemp("nexmark")) as plane, plane.client() as client:
        yield client


@pytest.mark.parametrize("query", TEN)
def test_a_query_that_is_killed_rescaled_and_forked_equals_its_oracle(
    spark: SparkSession, client: Client, query: str, tmp_path: Path
) -> None:
    artifact = client.artifacts.upload(FOLDER / f"{query}.py").sha256
    output, other = tmp_path / "output", tmp_path / "other"
    parameters = {**OPTIONS, "delay": f"{DELAY.seconds} seconds", "output": str(output)}
    client.applications.create(query, artifact, parameters=parameters, configuration=CONFIGURATION)
    application = client.application(query)

    reach(application, KILLED_AFTER)
    kill_driver(application)
    reach(application, RESCALED_AFTER)
    fork = client.applications.fork(query, f"{query}-fork", epoch=FORKED_AT, parameters={"output": str(other)})
    client.operations.wait(application.versions.rescale(3), timeout_seconds=SECONDS)
    client.applications.wait(query, "ended", timeout_seconds=SECONDS)
    client.applications.wait(fork.name, "ended", timeout_seconds=SECONDS)

    assert sum(len(execution.attempts) for execution in application.executions.list(limit=None)) > 1
    assert application.get().configuration["parallelism"] == 3
    events = nexmark.source(**OPTIONS).make().rows(spark, 0, EVENTS)  # type: ignore[attr-defined]
    oracle = answer(events, query).toArrow()
    assert oracle.num_rows > 0
    written, written_by_fork = epochs_of(output), epochs_of(other)
    before = {epoch: rows for epoch, rows in written.items() if epoch <= FORKED_AT}
    assert not set(before) & set(written_by_fork)
    for history in (written, before | written_by_fork):
        final = newest(query, [history[epoch] for epoch in sorted(history)])
        assert sorted_rows(final.select(oracle.column_names)) == sorted_rows(oracle)


def reach(application: ApplicationHandle, epoch: int) -> None:
    eventually(lambda: (head := application.get().head) is not None and head.epoch >= epoch, SECONDS)


def kill_driver(application: ApplicationHandle) -> None:
    (running,) = (
        attempt
        for execution in application.executions.list(limit=None)
        for attempt in execution.attempts
        if attempt.state == "running" and attempt.process
    )
    assert running.process is not None
    os.killpg(process_id(running.process), signal.SIGKILL)


def epochs_of(folder: Path) -> dict[int, pa.Table]:
    """The visible rows of a folder, by epoch."""
    found: dict[int, list[pa.Table]] = {}
    for file in folder.glob("epoch=*/[!_.]*"):
        found.setdefault(int(file.parent.name.partition("=")[2]), []).append(pq.read_table(file))
    return {epoch: pa.concat_tables(tables) for epoch, tables in found.items()}
