"""The driver process: how it ends, and, with Spark, how an application survives its death."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from epochal.contracts.catalog import Failure
from epochal.driver.orders import ArtifactOrder, DriverOrders
from epochal.service.domain.executions import AttemptTicket
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.control_plane import control_plane, process_id
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from tests.service.conftest import Plane

PIPELINE = """
    from pydantic import BaseModel
    from epochal import Pipeline
    from epochal.connectors import files, generator

    class Parameters(BaseModel):
        output: str

    def build(parameters: Parameters) -> Pipeline:
        pipeline = Pipeline("counts")
        rows = pipeline.read("rows", generator.source({"k": "cast(noise % 50 AS string)", "v": "id"}, rate=200))
        counts = rows.key_by("k").aggregate("counts", n="count(*)", total="sum(v)")
        counts.write("out", files.sink(parameters.output, mode="updates"))
        return pipeline
"""


def drive(orders: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "epochal.driver"]
    return subprocess.run(command, input=orders, capture_output=True, text=True, check=False, timeout=120)


def orders(plane: Plane, ticket: AttemptTicket, **more: Any) -> str:
    return (
        DriverOrders(
            control_planes=(plane.settings.internal_url,),
            token=ticket.token,
            execution=ticket.execution,
            attempt=ticket.attempt,
            application="flights",
            artifact=ArtifactOrder(sha256=plane.get("/v1/applications/flights")["artifact"], filename="flights.py"),
            store=plane.settings.store_url,
            work_directory=plane.settings.data / "scratch",
        )
        .model_copy(update=more)
        .model_dump_json()
    )


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.py"
    path.write_text(dedent(PIPELINE))
    return path


@pytest.fixture
def ticket(plane: Plane) -> AttemptTicket:
    plane.application()
    return plane.control.ledger.new_attempt(plane.get("/v1/applications/flights")["execution"])


def test_invalid_launch_orders_are_refused() -> None:
    ended = drive('{"nonsense": 1}')
    assert ended.returncode == 2 and "invalid orders" in ended.stdout


def test_a_driver_declared_lost_before_it_begins_is_fenced(plane: Plane, ticket: AttemptTicket) -> None:
    plane.control.ledger.attempt_ended(
        ticket.execution, ticket.attempt, "lost", Failure(type="driver-lost", message="no heartbeat")
    )
    ended = drive(orders(plane, ticket))
    assert ended.returncode == 3 and "fenced" in ended.stdout


def test_a_token_of_another_attempt_is_refused(plane: Plane, ticket: AttemptTicket) -> None:
    ended = drive(orders(plane, ticket, attempt=ticket.attempt + 1))
    assert ended.returncode == 3
    assert ticket.token not in ended.stdout + ended.stderr


def test_a_driver_reports_why_it_cannot_load_its_pipeline(plane: Plane, ticket: AttemptTicket) -> None:
    """Its code was changed in the store, and no copy exists in the cache."""
    store = SnapshotStore(plane.settings.store_url)
    (stored,) = store.list("artifacts")
    (Path(store.url) / stored).write_bytes(b"another pipeline")
    shutil.rmtree(plane.settings.artifact_cache_directory)
    plane.settings.artifact_cache_directory.mkdir()
    ended = drive(orders(plane, ticket))
    assert ended.returncode == 1
    (attempt,) = plane.get("/v1/applications/flights/executions")["items"][0]["attempts"]
    assert (attempt["state"], attempt["failure"]["type"]) == ("failed", "invalid-artifact")
    assert "was changed" in attempt["failure"]["message"]


class Running:
    """A client of the application, which runs on a real control plane with a real engine."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str = "", **query: Any) -> Any:
        answer = self._client.get(f"/v1/applications/counts{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def attempts(self) -> list[Any]:
        return list(self.get("/executions")["items"][0]["attempts"])

    def committed(self) -> int:
        head = self.get()["head"]
        return int(head["epoch"]) if head else 0

    def check_progress(self) -> None:
        before = self.committed()
        eventually(lambda: self.committed() >= before + 2, 240)

    def check_state(self) -> None:
        """Check that the state at one committed epoch counts exactly the rows that the epochs up to it have read."""
        keys = [{"k": str(number)} for number in range(50)]
        answer = self._client.post("/v1/applications/counts/state/counts/lookup", json={"keys": keys}).json()
        items = self.get("/epochs", limit=500, state="committed")["items"]
        read = sum(item["rows_in"] for item in items if item["epoch"] <= answer["epoch"])
        assert sum(value["n"] for value in answer["values"] if value) == read
        assert sum(value["total"] for value in answer["values"] if value) == read * (read - 1) // 2


@pytest.mark.slow
@pytest.mark.long
def test_an_application_survives_its_drivers_and_its_control_plane(artifact: Path, tmp_path: Path) -> None:
    with control_plane(tmp_path / "plane", {"EPOCHAL_LOG_FORMAT": "json"}) as plane:
        token = (plane.home / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=plane.url, headers=headers, trust_env=False, timeout=240) as client:
            sha256 = client.post(
                "/v1/artifacts", params={"filename": "pipeline.py"}, content=artifact.read_bytes()
            ).json()["sha256"]
            body = {"name": "counts", "artifact": sha256, "parameters": {"output": str(tmp_path / "out")}}
            submitted = client.post("/v1/applications", json=body | {"configuration": {"epoch_interval_seconds": 0.2}})
            assert submitted.status_code == 201, submitted.text
            application = Running(client)
            application.check_progress()
            application.check_state()

            os.kill(process_id(application.attempts()[0]["process"]), signal.SIGKILL)
            eventually(lambda: len(application.attempts()) == 2, 240)
            application.check_progress()
            application.check_state()

            plane.restart(kill=True)
            application.check_progress()
            assert [attempt["state"] for attempt in application.attempts()] == ["lost", "running"]

            stopping = client.post("/v1/applications/counts/stop", json={"savepoint": "end"}).json()["id"]
            eventually(lambda: client.get(f"/v1/operations/{stopping}").json()["state"] != "running", 240)
            assert client.get(f"/v1/operations/{stopping}").json()["state"] == "succeeded"
            application.check_state()
            saved = application.get("/state/counts/keys/7", savepoint="end")
            # The replica follows the catalog asynchronously.
            assert saved == application.get("/state/counts/keys/7", min_epoch=saved["epoch"], wait_seconds=30)
            check_metrics(client.get("/metrics").text, application)
            log = plane.run("logs", "counts", columns=10_000)
            records = [json.loads(line) for line in log.stdout.splitlines() if line.startswith("{")]
            assert {record["application"] for record in records} == {"counts"} and log.returncode == 0
            assert any("E4 prepare" in record["message"] and record["epoch"] > 1 for record in records)
        records = [json.loads(line) for line in plane.log.read_text().splitlines() if line.startswith("{")]
        decided = [record for record in records if "decision" in record]
        assert [record["decision"] for record in decided][:3] == ["launch", "give-up", "launch"]
        assert {record["application"] for record in decided} == {"counts"}


def check_metrics(text: str, application: Running) -> None:
    """The metrics are complete although their control plane replaced a killed one."""
    samples = {
        (sample.name, sample.labels.get("step")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("application") == "counts" and "le" not in sample.labels
    }
    committed = application.get("/epochs", limit=500, state="committed")["items"]
    assert samples["epochal_committed_epochs_total", None] == len(committed)
    assert samples["epochal_rows_in_total", None] == sum(item["rows_in"] for item in committed)
    assert samples["epochal_attempts_total", None] == 2 and samples["epochal_restarts_total", None] == 1
    assert samples["epochal_epoch_step_seconds_count", "R"] >= 1
    assert 1 < samples["epochal_sink_commit_seconds_count", None] <= len(committed)
    assert 1 < samples["epochal_epoch_step_seconds_count", "E2"] <= len(committed) + 2
    tasks = {step: samples["epochal_task_step_seconds_count", step] for step in ("T1", "T2", "T3")}
    rows, busy = (
        [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and sample.labels["application"] == "counts"
        ]
        for name in ("epochal_subtask_rows_total", "epochal_subtask_busy_seconds_total")
    )
    assert len(rows) == len(busy) > 1 and sum(rows) > 0 and min(busy) > 0
    assert len(set(tasks.values())) == 1 and tasks["T1"] >= 2 * samples["epochal_epoch_step_seconds_count", "E3"]
