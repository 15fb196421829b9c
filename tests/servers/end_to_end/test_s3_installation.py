"""An installation with its snapshots in S3: an outage, a killed driver, look-ups, fork, rollback, collection."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane, process_id
from epochal.testing.servers.s3_proxy import S3Proxy
from epochal.testing.servers.spark_standalone import standalone_cluster
from tests.kit.servers import or_skipped

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.server, pytest.mark.timeout(900)]

TIMEOUT_SECONDS = 240
NAME = "totals"
CODE = """
from pydantic import BaseModel
from epochal import Pipeline
from epochal.connectors import files


class Parameters(BaseModel):
    folder: str
    output: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("totals")
    source = files.source(parameters.folder, format="json", schema="k string, v int", max_files=1)
    totals = pipeline.read("events", source).key_by("k").aggregate("totals", events="count(*)", total="sum(v)")
    totals.write("out", files.sink(parameters.output, format="json", mode="updates"))
    return pipeline
"""


class Input:
    """A folder of input, with the totals of everything fed so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.totals: dict[str, tuple[int, int]] = {}
        self._files = 0
        folder.mkdir()

    def feed(self, count: int) -> None:
        for _ in range(count):
            self._files += 1
            rows = [{"k": f"k{row % 7}", "v": self._files * 100 + row} for row in range(50)]
            for row in rows:
                events, total = self.totals.get(str(row["k"]), (0, 0))
                self.totals[str(row["k"])] = (events + 1, total + int(str(row["v"])))
            part = self.folder / f".{self._files}"
            part.write_text("".join(json.dumps(row) + "\n" for row in rows))
            part.rename(self.folder / f"{self._files:04}.json")


def totals_of(client: Client, name: str = NAME) -> dict[str, tuple[int, int]]:
    found = client.application(name).state("totals").scan_all()
    return {str(row.key["k"]): (row.value["events"], row.value["total"]) for row in found}


def wait_for_totals(client: Client, expected: dict[str, tuple[int, int]], name: str = NAME) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while totals_of(client, name) != expected:
        assert time.monotonic() < deadline, client.applications.get(name)
        time.sleep(0.2)


def wait_until_shown(plane: ControlPlane, text: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while text not in " ".join((shown := plane.run("show", NAME).stdout).split()):
        assert time.monotonic() < deadline, shown
        time.sleep(1)


def running_driver(client: Client) -> int:
    """The process id of the application's driver."""
    (process,) = [
        attempt.process
        for execution in client.application(NAME).executions.list()
        for attempt in execution.attempts
        if attempt.state == "running"
    ]
    assert process is not None
    return process_id(process)


@pytest.fixture(params=["local[2]", "standalone"])
def master(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "standalone":
        yield request.param
        return
    for cluster in or_skipped(standalone_cluster(workers=2, cores=2)):
        yield cluster.master_url


def test_installation_in_s3_survives_an_outage_and_a_killed_driver(
    s3_installation: ControlPlane, s3_proxy: S3Proxy, master: str, tmp_path: Path
) -> None:
    events = Input(tmp_path / "in")
    (tmp_path / "totals.py").write_text(CODE)
    configuration = {"epoch_interval_seconds": 0.2, "parallelism": 2, "master": master, "tolerable_failed_epochs": 0}
    if master.startswith("spark://"):
        configuration["spark"] = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"}
    with s3_installation.client() as client:
        events.feed(3)
        artifact = client.artifacts.upload(tmp_path / "totals.py")
        parameters = {"folder": str(tmp_path / "in"), "output": str(tmp_path / "out")}
        client.applications.create(NAME, artifact.sha256, parameters=parameters, configuration=configuration)
        client.applications.wait(NAME, "committed", timeout_seconds=TIMEOUT_SECONDS)
        wait_for_totals(client, events.totals)
        before = dict(events.totals)
        head = max(epoch.epoch for epoch in client.application(NAME).epochs.list(state="committed"))

        s3_proxy.down()
        events.feed(2)
        wait_until_shown(s3_installation, "waiting for the store since")
        assert totals_of(client) == before  # look-ups continue
        os.kill(running_driver(client), signal.SIGKILL)
        time.sleep(5)
        s3_proxy.up()
        wait_for_totals(client, events.totals)
        failures = [
            attempt.failure.type
            for execution in client.application(NAME).executions.list()
            for attempt in execution.attempts
            if attempt.failure is not None
        ]
        assert failures == ["driver-lost"]  # the killed one

        client.applications.fork(NAME, "copy", epoch=head, shadow=True)
        client.applications.wait("copy", "committed", timeout_seconds=TIMEOUT_SECONDS)
        wait_for_totals(client, events.totals, "copy")
        client.operations.wait(client.applications.stop("copy"), timeout_seconds=TIMEOUT_SECONDS)

        plan = client.application(NAME).rollback.plan(epoch=head, move_aside=True)
        rollback = client.application(NAME).rollback.to(
            epoch=head, move_aside=True, message="again", confirm=plan.confirm
        )
        client.operations.wait(rollback, timeout_seconds=TIMEOUT_SECONDS)
        wait_for_totals(client, events.totals)
        client.operations.wait(client.applications.stop(NAME), timeout_seconds=TIMEOUT_SECONDS)

    collected = s3_installation.run("gc", "--grace", "0")
    assert collected.returncode == 0, collected.stdout
    verified = s3_installation.run("verify")
    assert verified.returncode == 0 and "intact" in verified.stdout, verified.stdout
