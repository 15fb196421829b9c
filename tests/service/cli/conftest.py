"""One control plane for all tests of the command line and the client: ``epochal up`` as a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from epochal.cli.main import main
from epochal.testing.servers.control_plane import COMMAND, ControlPlane, control_plane

SENSORS = """
from epochal import Pipeline
from epochal.connectors import files, generator
from pydantic import BaseModel


class Parameters(BaseModel):
    output: str
    modulo: int = 1000
    rate: float = 200


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("sensors")
    columns = {"sensor": "concat('s', noise % 3)", "value": f"noise % {parameters.modulo}"}
    readings = pipeline.read("readings", generator.source(columns, rate=parameters.rate))
    highest = readings.key_by("sensor").aggregate("highest", readings="count(*)", highest="max(value)")
    highest.write("out", files.sink(parameters.output, mode="updates"))
    return pipeline
"""


@dataclass(frozen=True)
class Answer:
    """The result of a command: exit code, standard output and standard error."""

    code: int
    output: str
    stderr: str

    @property
    def document(self) -> Any:
        return json.loads(self.output)


class CommandLine:
    """Runs ``epochal`` with its own environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def __call__(self, *arguments: str | Path, **environment: str) -> Answer:
        """Run in this process, which is fast."""
        output, stderr = StringIO(), StringIO()
        variables = self.environment | {"COLUMNS": "120"} | environment
        with patch.dict(os.environ, variables, clear=True), redirect_stdout(output), redirect_stderr(stderr):
            try:
                main([str(argument) for argument in arguments])
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Answer(code, output.getvalue(), _without_waits(stderr.getvalue()))

    def spawn(self, *arguments: str | Path, **environment: str) -> Answer:
        """Run as a process, for commands that start servers or Spark."""
        ended = subprocess.run(
            [COMMAND, *map(str, arguments)],
            env=self.environment | {"COLUMNS": "120"} | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return Answer(ended.returncode, ended.stdout, _without_waits(ended.stderr))


def _without_waits(stderr: str) -> str:
    """Remove lines such as ``Starting Spark ..``, which a command prints only while it waits."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not re.search(r"\S \.\.( |$)", line.rstrip()))


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("cli")) as plane:
        yield plane


@pytest.fixture
def epochal(plane: ControlPlane) -> CommandLine:
    """The command, configured for the control plane."""
    return CommandLine(dict(plane.environment))


@pytest.fixture
def alone(plane: ControlPlane, tmp_path: Path) -> CommandLine:
    """The command without a configured control plane."""
    inherited = {name: value for name, value in plane.environment.items() if not name.startswith("EPOCHAL_")}
    return CommandLine(inherited | {"EPOCHAL_HOME": str(tmp_path / "home")})


@pytest.fixture
def sensors(tmp_path: Path, sensors_code: str) -> Path:
    """An unbounded pipeline that aggregates readings of three sensors."""
    file = tmp_path / "sensors.py"
    file.write_text(sensors_code)
    return file


@pytest.fixture(scope="session")
def sensors_code() -> str:
    return SENSORS
