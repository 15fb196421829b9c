"""README, the quickstart and a tutorial, as written: commands, the pipeline, the Python client."""

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
MAKE_COMMANDS = {"make demo", "make demo KEEP=1", "make test"}
"""The demo has its own tests; ``make test`` runs this one."""

LOCAL_COMMANDS = ("epochal check", "epochal run")
"""These share a JVM, since starting one for each would take longer."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a reader has saved the pipeline, with the examples."""
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
    if words[1] == "call":
        words += ["--wait-seconds", "120"]  # the driver that answers has just been started
    assert words[0] == "epochal", f"README has a command that this test cannot run: {command}"
    done = subprocess.run(
        [COMMAND, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_pipeline_has_at_most_twenty_lines(folder: Path) -> None:
    lines = (folder / "orders.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 20


def test_quickstart_shows_the_pipeline_of_readme() -> None:
    pipelines = {
        block.text for page in (PAGE, QUICKSTART) for block in blocks_of(page, "python") if "Pipeline(" in block.text
    }
    assert len(pipelines) == 1


def test_every_command_exists(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With arguments and options. Their effects on a control plane are tested below and in tests/service/cli."""
    monkeypatch.chdir(folder)
    assert set(COMMANDS) >= MAKE_COMMANDS
    for command in COMMANDS:
        if command not in MAKE_COMMANDS:
            with pytest.raises(SystemExit) as ended:
                main([*shlex.split(command)[1:], "--help"])
            assert ended.value.code in (0, None), command


@pytest.mark.alternating(2)
def test_pipeline_is_checked_and_run_as_in_readme(folder: Path) -> None:
    output: dict[str, str] = {}
    environment = {**os.environ, "EPOCHAL_HOME": str(folder / "home"), "COLUMNS": "200"}
    with SparkJvm() as jvm:
        for command in COMMANDS:
            if command.startswith(LOCAL_COMMANDS):
                output[command] = run(command, folder, environment | jvm.environment)
                jvm.end_context()
    assert "good_customers" in output["epochal check orders.py"]
    assert "5 epochs" in output["epochal run orders.py --epochs 5"]


@pytest.mark.long  # three drivers, a builder with Spark: reconfiguration/test_running.py has one of each in every run
def test_every_other_command_works_as_in_readme(
    folder: Path, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    output: dict[str, str] = {}
    for command in COMMANDS:
        if command not in MAKE_COMMANDS and not command.startswith(LOCAL_COMMANDS):
            output[command] = run(command, folder, plane.environment | {"COLUMNS": "200"})
            if command.startswith("epochal submit orders.py"):
                _wait_for_key(plane)
    assert "monday" in output["epochal lineage orders"]
    assert "trial" in output["epochal ps"]
    assert "recommend" in output["epochal sdg explain examples/sdg/collaborative_filtering.py"]
    assert "open" in output["epochal call store get -a key=JFK"]

    # The Python client of the quickstart; it reads the address of the control plane from the environment.
    for name in ("EPOCHAL_URL", "EPOCHAL_HOME"):
        monkeypatch.setenv(name, plane.environment[name])
    (client,) = (block for block in blocks_of(QUICKSTART, "python") if "Client" in block.text)
    names: dict[str, Any] = {}
    exec(client.code, names)  # type: ignore[call-overload]
    assert names["answer"].value["orders"] > 0


def _wait_for_key(plane: ControlPlane) -> None:
    """Wait until the first epoch with customer 42 has committed: a reader takes time to type."""
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
