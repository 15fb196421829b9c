"""A Delta table that is compacted while a real driver appends epochs to it: it has each row once."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from epochal.client import Client, Operation
from epochal.client.applications import ApplicationHandle
from epochal.testing.servers.control_plane import control_plane
from tests.kit.waiting import eventually
from tests.service.end_to_end.test_loop_killed import kill_driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 240
PIPELINE = """
from epochal import Pipeline
from epochal.connectors import delta, generator
from pydantic import BaseModel


class Parameters(BaseModel):
    table: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("readings")
    rows = pipeline.read("rows", generator.source({"id": "id", "day": "id % 3"}, rate=200))
    rows.write("out", delta.sink(parameters.table, partition_by="day"))
    return pipeline
"""


def test_a_table_is_compacted_while_epochs_are_committed_to_it(tmp_path: Path) -> None:
    (tmp_path / "readings.py").write_text(PIPELINE)
    table = tmp_path / "table"
    with control_plane(tmp_path / "plane") as plane, plane.client() as client:
        client.applications.create(
            "readings",
            client.artifacts.upload(tmp_path / "readings.py").sha256,
            parameters={"table": str(table)},
            configuration={"parallelism": 2, "epoch_interval_seconds": 0.1, "restart": {"backoff_seconds": 0.1}},
        )
        application = client.application("readings")
        for _ in range(3):
            epochs(application, 5)
            result = waited(client, application.sinks.optimize("out")).result
            assert result is not None
            assert result["files_removed"] > result["files_added"] == 3
            assert result["version"] is not None
        operation = application.sinks.optimize("out")
        kill_driver(application)
        assert waited(client, operation).state == "succeeded"
        epochs(application, 3)
        client.operations.wait(client.applications.stop("readings"), timeout_seconds=SECONDS)
        ids = sorted(DeltaTable(str(table)).to_pyarrow_table(columns=["id"]).column("id").to_pylist())
        assert ids == list(range(len(ids))) and len(ids) >= 1000
        written = sum(epoch.rows_in or 0 for epoch in application.epochs.list(limit=None, state="committed"))
        assert len(ids) == written
        check_restore_point(application, table)
        operations = [entry["operation"] for entry in DeltaTable(str(table)).history()]
        assert operations.count("OPTIMIZE") >= 3 and operations.count("WRITE") > 18


def check_restore_point(application: ApplicationHandle, table: Path) -> None:
    """The plan of a rollback names the version with the rows of exactly the epochs that stay."""
    target = head(application) - 2
    (sink,) = application.rollback.plan(epoch=target).sinks
    assert sink.restore_to is not None and f"version {sink.restore_to} " in str(sink.restore)
    kept = sum(epoch.rows_in or 0 for epoch in application.epochs.list(limit=None) if epoch.epoch <= target)
    restored = DeltaTable(str(table), version=int(sink.restore_to)).to_pyarrow_table(columns=["id"])
    assert sorted(restored.column("id").to_pylist()) == list(range(kept))


def epochs(application: ApplicationHandle, more: int) -> None:
    """Wait until further epochs are committed."""
    first = head(application)
    eventually(lambda: head(application) >= first + more, SECONDS)


def head(application: ApplicationHandle) -> int:
    latest = application.get().head
    return 0 if latest is None else latest.epoch


def waited(client: Client, operation: Operation) -> Operation:
    return client.operations.wait(operation, timeout_seconds=SECONDS)
