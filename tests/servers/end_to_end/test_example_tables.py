"""The example with Delta and Iceberg, run as a command, and the Python blocks of the pages of both sinks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from epochal import Pipeline
from epochal.connectors import generator, iceberg
from epochal.pipeline.description import notes_of
from epochal.testing.servers import ServerUnavailable
from epochal.testing.servers.kafka import COORDINATES, VERSION
from epochal.testing.servers.maven import artifacts
from tests.service.end_to_end.blocks import ROOT, blocks_of


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_tables_example_equals_pandas() -> None:
    try:
        artifacts(f"kafka-{VERSION}", COORDINATES)
    except ServerUnavailable as unavailable:
        pytest.skip(unavailable.message)
    command = [sys.executable, "-m", "examples.tables.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was killed between the commits" in done.stdout and "was away" in done.stdout
    assert done.stdout.count("equal to pandas") == 3 and "NOT EQUAL" not in done.stdout


def test_python_blocks_of_the_tutorial_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "not used: nothing connects")
    names: dict[str, Any] = {}
    for block in blocks_of("docs/tutorials/kafka-to-delta-and-iceberg.md", "python"):
        exec(block.code, names)  # type: ignore[call-overload]
    graph = names["pipeline"].graph()
    assert [node.name for node in graph.sinks] == ["arrivals", "late"]
    assert [node.note for node in graph.sinks] == [None, None]
    assert [node.name for node in names["carriers"].graph().sources] == ["arrivals"]


@pytest.mark.parametrize(("page", "kind"), [("delta", "delta"), ("iceberg", "iceberg")])
def test_python_blocks_of_the_pages_run(page: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHIPPED_KEY", "SHIPPED_SECRET", "CATALOG_TOKEN"):
        monkeypatch.setenv(name, "not used: nothing connects")
    names: dict[str, object] = {"pipeline": Pipeline("page")}
    blocks = blocks_of(f"docs/reference/sinks/{page}.md", "python")
    assert len(blocks) == (4 if kind == "delta" else 2)
    kinds = []
    for block in blocks:
        exec(block.code, names)  # type: ignore[call-overload]
        kinds.append(getattr(names["orders"], "kind", None))
    assert kinds[0] == kind


def test_an_iceberg_sink_that_commits_each_epoch_has_a_note() -> None:
    pipeline = Pipeline("notes")
    rows = pipeline.read("rows", generator.source({"id": "noise"}, rate=1))
    rows.write("out", iceberg.sink("a.b", catalog={"type": "sql", "uri": "sqlite:///catalog.sqlite"}))
    (note,) = notes_of(pipeline.graph())
    assert note.startswith("Sink 'out' adds a snapshot to the table for each epoch")
