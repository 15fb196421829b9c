"""Directories of commands: writability and use by one process at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from epochal.cli.directories import held, writable
from epochal.cli.main import main
from epochal.errors import Conflict, EnvironmentProblem

HOLDER = """
import sys
from pathlib import Path
from epochal.cli.directories import held
with held(Path(sys.argv[1]), take_over=False):
    print("held", flush=True)
    sys.stdin.read()
"""
PIPELINE = """
from epochal import Pipeline
from epochal.connectors import console, generator
pipeline = Pipeline("counts")
pipeline.read("rows", generator.source({"k": "id"}, bound=1)).write("out", console.sink())
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the directory."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_directory_is_held_until_its_process_ends(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    message = rf"process {holder.pid}, since 20.*--take-over"
    for _ in range(2):
        with pytest.raises(Conflict, match=message), held(tmp_path, take_over=False):
            pass
    holder.kill()
    holder.wait()
    for _ in range(2):
        with held(tmp_path, take_over=False):
            pass


def test_a_take_over_outlasts_the_previous_holder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with held(tmp_path, take_over=True):
        for _ in range(2):
            with pytest.raises(Conflict, match=f"process {os.getpid()}"), held(tmp_path, take_over=False):
                pass
            holder.kill()
            holder.wait()
    with held(tmp_path, take_over=False):
        pass


def test_directories_are_created_and_must_be_writable(tmp_path: Path) -> None:
    assert writable(tmp_path / "a" / "b", "--directory").is_dir()
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        with pytest.raises(EnvironmentProblem, match=rf"{place} is not writable: .*--directory"):
            writable(place, "--directory")


@pytest.mark.parametrize(
    "command", [["run", "pipeline.py", "--directory"], ["up", "--port", "0", "--home"], ["migrate", "--home"]]
)
def test_errors_name_the_directory_and_the_option(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    code, output, errors = epochal(*command, "/proc/nothing", "--json")
    assert (code, "error: The directory /proc/nothing is not writable" in errors) == (1, True), errors
    assert f"Choose another one with {command[-1]}" in errors
    assert json.loads(output)["error"]["type"] == "environment"


def test_run_refuses_a_directory_held_by_another_process(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    code, _, errors = epochal("run", str(tmp_path / "pipeline.py"), "--directory", str(tmp_path))
    assert (code, f"process {holder.pid}" in errors, "--take-over" in errors) == (4, True, True), errors


def epochal(*arguments: str) -> tuple[int, str, str]:
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            main(arguments)
        except SystemExit as ended:
            return int(ended.code or 0), output.getvalue(), errors.getvalue()
    return 0, output.getvalue(), errors.getvalue()
