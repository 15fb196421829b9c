"""Output of commands that wait, with a standard error that is no terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from http.server import BaseHTTPRequestHandler
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer.main

from epochal.cli import output
from epochal.cli.local_run import _Progress
from epochal.cli.main import app, main
from epochal.cli.output import Output
from tests.kit.manifests import plain_manifest
from tests.kit.waiting import eventually
from tests.service.scripted_answers import Script, answer, problem, scripted

NOW = "2026-01-01T00:00:00Z"
QUIET_SECONDS, ANSWER_SECONDS = 0.03, 0.12


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands that call a control plane, by their path."""
    for name, each in getattr(command, "commands", {}).items():
        if hasattr(each, "commands"):
            yield from commands(each, (*path, name))
        elif any("--url" in option.opts for option in each.params):
            yield (*path, name), each


CALLING = dict(commands(typer.main.get_command(app)))


EXCLUDED = {("login",)}
"""Calls an identity provider and prints instructions instead."""
FURTHER: dict[tuple[str, ...], list[str]] = {
    ("apply",): ["--file", "FILE"],
    ("backup", "prune"): ["--keep", "1"],
    ("delete",): ["--yes"],
    ("transaction", "abort"): ["--yes"],
    ("transaction", "commit"): ["--yes"],
    ("webhooks", "create"): ["--kind", "epoch.committed"],
}
"""Options that a command requires although its parser does not."""


def arguments(path: tuple[str, ...], folder: Path) -> list[str]:
    """A value for each parameter that the command requires."""
    values = [str(folder / "app.yaml") if each == "FILE" else each for each in FURTHER.get(path, [])]
    for parameter in CALLING[path].params:
        if parameter.required and parameter.opts[0] not in values:
            value = {"FILE": str(folder / "code.py"), "URL": f"file://{folder}"}.get(parameter.metavar or "", "1")
            values += [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]
    return values


def run(*values: str) -> tuple[str, str]:
    results, notes = StringIO(), StringIO()
    with redirect_stdout(results), redirect_stderr(notes), suppress(SystemExit):
        main(list(values))
    return results.getvalue(), notes.getvalue()


def late(step: Callable[[BaseHTTPRequestHandler], None]) -> Callable[[BaseHTTPRequestHandler], None]:
    def stepped(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(ANSWER_SECONDS)
        step(handler)

    return stepped


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setattr(output, "QUIET_SECONDS", QUIET_SECONDS)
    monkeypatch.setenv("EPOCHAL_TOKEN", "none")
    monkeypatch.setenv("COLUMNS", "200")
    with scripted() as script:
        monkeypatch.setenv("EPOCHAL_URL", script.url)
        yield script


@pytest.mark.parametrize("path", [path for path in CALLING if path not in EXCLUDED], ids=" ".join)
def test_every_command_prints_what_it_waits_for(path: tuple[str, ...], script: Script, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("pipeline = None\n")
    script.then(*[late(problem(404, "not-found", "Unknown resource."))] * 3)
    (tmp_path / "app.yaml").write_text("name: orders\ncode: code.py\n")
    _, notes = run(*path, *arguments(path, tmp_path))
    assert script.requests, notes
    assert " .." in notes.splitlines()[0], notes


NOT_COMMITTED = problem(404, "not-found", "Application 'orders' has not committed an epoch yet, and so has no state.")


def application(state: str, epoch: int | None) -> Callable[[BaseHTTPRequestHandler], None]:
    head = {"branch": "main", "epoch": epoch, "committed_at": NOW, "drained": False}
    document = {
        "name": "orders",
        "project": "default",
        "revision": "1",
        "state": state,
        "branch": "main",
        "version": 1,
        "artifact": "0" * 64,
        "parameters": {},
        "configuration": {},
        "shadow": False,
        **dict.fromkeys(("detail", "parent", "imported_from", "execution", "failure", "restarts")),
        "head": None if epoch is None else head,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return answer(200, document)


def test_get_waits_for_the_first_epoch_of_a_started_application(script: Script) -> None:
    value = {
        "table": "spent",
        "key": {"customer": 42},
        "value": {"total": 7},
        "branch": "main",
        "epoch": 1,
        "isolation": "read_committed",
    }
    script.then(NOT_COMMITTED, application("starting", None), application("starting", None))
    script.then(application("running", None), application("running", 1), answer(200, value), answer(200, {"items": []}))
    results, notes = run("get", "orders", "spent", "42")
    assert "Waiting for the first epoch of orders .." in notes
    assert "7" in results and "epoch 1 of main" in results, notes


@pytest.mark.parametrize("state", ["created", "stopped", "failed"])
def test_get_does_not_wait_for_an_application_that_does_not_run(script: Script, state: str) -> None:
    script.then(NOT_COMMITTED, application(state, None))
    results, notes = run("get", "orders", "spent", "42")
    assert results == "" and "has not committed an epoch yet" in notes
    assert len(script.requests) == 2


def test_get_does_not_wait_for_a_missing_key_or_a_given_epoch(script: Script) -> None:
    missing = problem(404, "key-not-found", "The key does not exist.")
    script.then(missing, application("running", 3))
    assert "does not exist" in run("get", "orders", "spent", "42")[1]
    script.then(NOT_COMMITTED, application("running", None))
    assert "has not committed" in run("get", "orders", "spent", "42", "--epoch", "1")[1]
    assert not script.steps


def test_with_json_standard_output_contains_the_document_only(script: Script) -> None:
    script.then(late(answer(200, {"items": []})))
    results, notes = run("ps", "--json")
    assert json.loads(results)["items"] == []
    assert "Waiting for the control plane at" in notes.splitlines()[0]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_quick_answer_prints_nothing(script: Script, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    monkeypatch.setattr(output, "QUIET_SECONDS", 60.0)
    script.then(answer(200, {"items": []}))
    assert run("ps", *options)[1] == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_the_waiting_message_is_repeated_with_progress_and_for_the_outer_wait_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    monkeypatch.setattr(output, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(output, "REPEATED_SECONDS", 0.1)
    made = Output.make(as_json)
    shown: list[str] = []

    def has(line: str) -> bool:
        shown.extend(capsys.readouterr().err.splitlines())
        return line in shown

    with made.busy("Starting orders") as progress, made.answered("http://other"):
        progress("starting")
        eventually(lambda: has("Starting orders .. starting"))
        progress("running")
        eventually(lambda: has("Starting orders .. running"))
    assert set(shown) == {"Starting orders .. starting", "Starting orders .. running"}


def test_the_waiting_message_is_printed_while_other_standard_error_is_dropped() -> None:
    """Spark's start drops standard error, also where it is a pipe."""
    program = (
        "import time\n"
        "from epochal.cli import output\n"
        "from epochal.cli.local_spark import quiet_start\n"
        "output.QUIET_SECONDS = 0.05\n"
        "made = output.Output.make(False)\n"
        "with made.busy('Starting Spark'), quiet_start():\n"
        "    time.sleep(0.3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stderr.splitlines()[0] == "Starting Spark .."


def test_run_prints_that_it_waits_for_its_first_epoch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "QUIET_SECONDS", 0.05)
    notes = Output.make(as_json=False)
    with ExitStack() as waiting:
        progress = _Progress(notes, waiting)
        waiting.enter_context(notes.busy("Waiting for the first epoch"))
        time.sleep(0.2)
        progress.show(plain_manifest(1))
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Waiting for the first epoch .." and "epoch 1" in lines[-1]
