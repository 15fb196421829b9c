"""README, the quickstart and a tutorial, word for word: commands, the pipeline, the Python client."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.cli.main import main
from epochal.client.state import State
from epochal.errors import NotFound
from epochal.testing.drivers import SparkJvm
from epochal.testing.servers.control_plane import COMMAND, ControlPlane, control_plane
from tests.service.end_to_end.blocks import blocks_of

PAGE, QUICKSTART = "README.md", "docs/start/quickstart.md"
PAGES = (PAGE, QUICKSTART, "docs/tutorials/class-to-dataflow.md")
BLOCKS = [block for page in PAGES for block in blocks_of(page, "console")]
COMMANDS = list(dict.fromkeys(command for block in BLOCKS for command in block.commands))
MADE = {"make demo", "make test"}  # the demo has a test of its own; the other one is what runs this

HERE = ("epochal check", "epochal run")
"""One after the other, they share a JVM: with its own each would only start later."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader has saved the pipeline, beside the examples."""
    folder = tmp_path_factory.mktemp("readme")
    (pipeline,) = (block.text for block in blocks_of(PAGE, "python") if block.text.startswith("# orders.py"))
    (folder / "orders.py").write_text(pipeline)
    (folder / "examples").symlink_to(Path(__file__).parents[3] / "examples")
    return folder


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """``epochal up`` in the other terminal."""
    with control_plane(tmp_path_factory.mktemp("plane")) as running:
        yield running


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    words = shlex.split(command)
    assert words[0] == "epochal", f"README has a command that this test cannot run: {command}"
    done = subprocess.run(
        [COMMAND, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_pipeline_is_as_short_as_it_is_said_to_be(folder: Path) -> None:
    lines = (folder / "orders.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 20


def test_quickstart_shows_the_pipeline_of_readme() -> None:
    pipelines = {
        block.text for page in (PAGE, QUICKSTART) for block in blocks_of(page, "python") if "Pipeline(" in block.text
    }
    assert len(pipelines) == 1


def test_every_command_is_one_that_there_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its arguments and options; what each does with a control plane is long, or told in tests/service/cli."""
    monkeypatch.chdir(folder)
    assert set(COMMANDS) >= MADE
    for command in COMMANDS:
        if command not in MADE:
            with pytest.raises(SystemExit) as ended:
                main([*shlex.split(command)[1:], "--help"])
            assert ended.value.code in (0, None), command


@pytest.mark.by_turns(2)
def test_the_pipeline_is_checked_and_run_as_readme_says(folder: Path) -> None:
    said: dict[str, str] = {}
    environment = {**os.environ, "EPOCHAL_HOME": str(folder / "home"), "COLUMNS": "200"}
    with SparkJvm() as jvm:
        for command in COMMANDS:
            if command.startswith(HERE):
                said[command] = run(command, folder, environment | jvm.environment)
                jvm.end_context()
    assert "good_customers" in said["epochal check orders.py"]
    assert "5 epochs" in said["epochal run orders.py --epochs 5"]


@pytest.mark.long  # three drivers, a builder with Spark: reconfiguration/test_running.py has one of each in every run
def test_every_other_command_does_what_readme_says(
    folder: Path, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, str] = {}
    for command in COMMANDS:
        if command not in MADE and not command.startswith(HERE):
            said[command] = run(command, folder, plane.environment | {"COLUMNS": "200"})
            if command.startswith("epochal submit orders.py"):
                _wait_for_key(plane)
    assert "monday" in said["epochal lineage orders"]
    assert "trial" in said["epochal ps"]
    assert "recommend" in said["epochal sdg explain examples/sdg/collaborative_filtering.py"]
    assert "open" in said["epochal call store get -a key=JFK"]

    # The Python client, as README has it; where the control plane is, it learns from the environment.
    for name in ("EPOCHAL_URL", "EPOCHAL_HOME"):
        monkeypatch.setenv(name, plane.environment[name])
    (client,) = (block for block in blocks_of(QUICKSTART, "python") if "Client" in block.text)
    names: dict[str, Any] = {}
    exec(client.code, names)  # type: ignore[call-overload]
    assert names["answer"].value["orders"] > 0


def _wait_for_key(plane: ControlPlane) -> None:
    """A reader takes a moment to type; the first epoch has to be committed, and to have brought customer 42."""
    deadline = time.monotonic() + 120
    with plane.client() as client:
        spent = client.application("orders").state("spent")
        while not _has_orders(spent):
            assert time.monotonic() < deadline, "\n".join(client.application("orders").logs(tail=60))
            time.sleep(0.5)


def _has_orders(spent: State) -> bool:
    try:
        return bool(spent.get(42).value["orders"] > 0)
    except NotFound:
        return False
