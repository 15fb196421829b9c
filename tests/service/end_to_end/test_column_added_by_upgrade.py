"""An upgrade in the running driver whose stream has a column that the table lacks (``add_columns=True``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from epochal.errors import SchemaError
from epochal.testing.servers.control_plane import control_plane
from tests.kit.waiting import eventually
from tests.service.end_to_end.test_optimized_table import epochs, head

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.alternating(3)]

SECONDS = 240
PIPELINE = """
from epochal import Pipeline
from epochal.connectors import delta, generator
from pydantic import BaseModel


class Parameters(BaseModel):
    table: str


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("readings")
    rows = pipeline.read("rows", generator.source({"id": "id"}, rate=200))
    rows.write("out", delta.sink(parameters.table, commit_every="1 s"))
    return pipeline
"""
REFUSED = PIPELINE.replace("rows.write", "rows.with_columns(more='id * 2').write")
ADDING = REFUSED.replace('commit_every="1 s"', 'commit_every="1 s", add_columns=True')


def test_an_upgrade_in_the_running_driver_adds_a_column(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    with control_plane(tmp_path / "plane") as plane, plane.client() as client:

        def artifact(text: str) -> str:
            (tmp_path / "readings.py").write_text(text)
            return client.artifacts.upload(tmp_path / "readings.py").sha256

        client.applications.create(
            "readings",
            artifact(PIPELINE),
            parameters={"table": str(folder)},
            configuration={"parallelism": 1, "epoch_interval_seconds": 0.1},
        )
        application = client.application("readings")
        epochs(application, 5)
        with pytest.raises(SchemaError, match="Or set add_columns=True, which adds more to the table"):
            application.versions.create(artifact(REFUSED))
        assert application.versions.preflight(artifact(ADDING)).ok
        assert [field.name for field in DeltaTable(folder).schema().fields] == ["id"]
        version = application.versions.create(artifact(ADDING))
        assert version.operation is not None
        assert client.operations.wait(version.operation, timeout_seconds=SECONDS).state == "succeeded"
        first = head(application)
        eventually(lambda: head(application) > first + 5, seconds=SECONDS)
        execution = application.get().execution
        assert execution is not None
        assert len(application.executions.get(execution).attempts) == 1
        client.operations.wait(client.applications.stop("readings"), timeout_seconds=SECONDS)
    found = DeltaTable(folder).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["id"] for row in found] == list(range(len(found)))
    before = sum(row["more"] is None for row in found)
    assert 0 < before < len(found)
    assert [row["more"] for row in found[before:]] == [2 * row["id"] for row in found[before:]]
    assert [entry["operation"] for entry in DeltaTable(folder).history()].count("ADD COLUMN") == 1
