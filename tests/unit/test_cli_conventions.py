"""Formatting, options, exit codes and routes of the command line, without a control plane."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from fastapi.routing import APIRoute

from epochal import errors
from epochal.cli import formatting
from epochal.cli.failures import ExitCode, exit_code, sentence
from epochal.cli.main import app
from epochal.cli.options import configuration, parameters
from epochal.cli.output import encode
from epochal.client.models import Head
from epochal.contracts.configuration import Configuration
from epochal.declarations.names import alternatives
from epochal.service.app import ROUTERS

RESOLVING = ("abort", "commit", "retry")
"""Actions of `epochal transaction` on a prepared transaction."""
SLUG = re.compile(r"`([a-z-]+)`")
NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "just now"),
        (41, "41 s ago"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (7200, "2 h ago"),
        (172800, "2 d ago"),
    ],
)
def test_ages_are_shown_in_one_unit(seconds: float, expected: str) -> None:
    assert formatting.age(NOW - timedelta(seconds=seconds), NOW) == expected


@pytest.mark.parametrize(
    ("bytes", "expected"), [(0, "0 B"), (1023, "1023 B"), (4300, "4.2 KiB"), (32 << 20, "32 MiB"), (None, "")]
)
def test_sizes_use_binary_units(bytes: int | None, expected: str) -> None:
    assert formatting.size(bytes) == expected


def test_parameters_are_json_or_text_and_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "parameters.json"
    file.write_text('{"limit": 1, "kept": [1, 2]}')
    parsed = parameters(["limit=15", "name=JFK", "flag=true", "path=a=b", "empty="], file)
    assert parsed == {"limit": 15, "kept": [1, 2], "name": "JFK", "flag": True, "path": "a=b", "empty": ""}


@pytest.mark.parametrize("text", ["nothing", "=3"])
def test_parameters_must_be_pairs(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        parameters([text])


@pytest.mark.parametrize("content", ["[1]", "{", None])
def test_a_parameters_file_must_hold_an_object(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "parameters.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(typer.BadParameter, match=r"parameters\.json"):
        parameters(None, file)


def test_settings_nest_by_dots_except_spark_names() -> None:
    parsed = configuration(["parallelism=4", "restart.max_restarts=2", "spark.executor.cores=1", "state_backend=heap"])
    assert parsed == {
        "parallelism": 4,
        "restart": {"max_restarts": 2},
        "spark": {"spark.executor.cores": "1"},
        "state_backend": "heap",
    }


@pytest.mark.parametrize(
    ("pairs", "dropped", "expected"),
    [
        (["allow_dropped_state=a"], None, ["a"]),
        (["allow_dropped_state=a,b.c"], None, ["a", "b.c"]),
        (["allow_dropped_state=a", "allow_dropped_state=b"], None, ["a", "b"]),
        (['allow_dropped_state=["a", "b"]'], ["c,d", "e"], ["a", "b", "c", "d", "e"]),
        (None, ["a", "b"], ["a", "b"]),
        (["allow_dropped_state=[]"], None, []),
        (["allow_dropped_state=null"], None, []),
        (["allow_dropped_state=17"], None, ["17"]),
    ],
)
def test_list_settings_accept_commas_json_and_repetition(
    pairs: list[str] | None, dropped: list[str] | None, expected: list[str]
) -> None:
    parsed = configuration(pairs, dropped)
    assert parsed == {"allow_dropped_state": expected}
    assert Configuration.model_validate(parsed).allow_dropped_state == tuple(expected)


@pytest.mark.parametrize("text", ["a,", ",", ""])
def test_empty_list_elements_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="empty element"):
        configuration([f"allow_dropped_state={text}"])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFound, ExitCode.NOT_FOUND),
        (errors.SnapshotExpired, ExitCode.NOT_FOUND),
        (errors.NameTaken, ExitCode.CONFLICT),
        (errors.CatalogUnavailable, ExitCode.UNREACHABLE),
        (errors.Forbidden, ExitCode.NOT_ALLOWED),
        (errors.Unauthenticated, ExitCode.NOT_ALLOWED),
        (errors.PipelineError, ExitCode.FAILED),
        (errors.EnvironmentProblem, ExitCode.FAILED),
    ],
)
def test_each_error_has_its_exit_code(error: type[errors.EpochalError], code: ExitCode) -> None:
    assert exit_code(error()) == code


def test_errors_are_one_line_except_author_tracebacks() -> None:
    assert sentence(errors.SinkError("The sink is full.\nlong detail")) == "The sink is full."
    assert sentence(errors.AuthorError("ZeroDivisionError\n  flights.py, line 3")).endswith("line 3")


def test_lists_are_encoded_as_items() -> None:
    epoch = Head(branch="main", epoch=3, committed_at=NOW, drained=False)
    assert json.loads(encode([epoch]))["items"][0]["epoch"] == 3
    assert json.loads(encode(epoch))["committed_at"].startswith("2024-05-01T12:00:00")


def every_error(kind: type[errors.EpochalError] = errors.EpochalError) -> Iterator[type[errors.EpochalError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from every_error(child)


def test_documented_exit_codes_match_every_error() -> None:
    importlib.import_module("epochal.service.app")  # declares further errors
    page = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text()
    rows = re.findall(r"^(\| (\d+) \|.*)$", page, re.MULTILINE)
    documented = {slug: int(code) for row, code in rows for slug in SLUG.findall(row)}
    found = {kind.slug: int(exit_code(kind("x"))) for kind in every_error() if "slug" in vars(kind)}
    assert documented.items() <= found.items()
    assert {slug for slug, code in found.items() if code != ExitCode.FAILED} == set(documented)


def test_unknown_names_come_with_alternatives() -> None:
    assert alternatives("flihgts", ["flights", "orders"]) == " Did you mean 'flights'?"
    assert alternatives("x", ["orders", "flights"]) == " Existing names: flights, orders."
    assert alternatives("x", []) == " None exist yet."
    assert alternatives("x", [f"application-{number}" for number in range(9)]) == ""


def commands(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, str]]:
    for group in app.registered_groups:
        yield from commands(group.typer_instance, f"{group.name} " if isinstance(group.name, str) else prefix)
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{prefix}{command.name or command.callback.__name__}", inspect.getsource(command.callback)


def test_waiting_commands_have_a_documented_wait_option() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text().partition("## Waiting")[2]
    waits = ("session.wait", "_finish(", "_answer(", "_begun(")
    waiting = {name for name, code in commands(app) if any(call in code for call in waits)}
    assert waiting >= {"submit", "stop", "transaction retry", "gc", "export"}
    for name, code in commands(app):
        assert ("wait: Wait = True" in code) == (name in waiting), name
        assert name not in waiting or f"`{name}" in page, name


APPLICATION = "/v1/applications/{name}"
SNAPSHOT, STATE = f"{APPLICATION}/snapshots/{{epoch}}", f"{APPLICATION}/state/{{table}}"
REST = {
    "apply": [
        *("POST /v1/artifacts", "GET /v1/applications", "POST /v1/applications", f"POST {APPLICATION}/versions"),
        *(f"POST {APPLICATION}/rescale", f"POST {APPLICATION}/start", f"POST {APPLICATION}/stop"),
    ],
    "artifacts delete": ["DELETE /v1/artifacts/{sha256}"],
    "artifacts list": ["GET /v1/artifacts"],
    "artifacts source": ["GET /v1/artifacts/{sha256}/source"],
    "audit": ["GET /v1/audit"],
    "backup create": ["POST /v1/backups"],
    "backup prune": ["POST /v1/backups/prune/plan", "POST /v1/backups/prune"],
    "call": [f"POST {APPLICATION}/entries/{{entry}}", f"GET {APPLICATION}/entries/{{entry}}/calls/{{request_id}}"],
    "console": ["POST /v1/session/links"],
    "delete": [f"DELETE {APPLICATION}"],
    "diff": [
        f"GET {APPLICATION}/snapshots/{{snapshot}}/diff",
        f"GET {APPLICATION}/snapshots/{{snapshot}}/diff/{{table}}",
    ],
    "entries": [f"GET {APPLICATION}/entries"],
    "epochs": [f"GET {APPLICATION}/epochs", f"GET {APPLICATION}/epochs/{{epoch}}"],
    "events": ["GET /v1/events", f"GET {APPLICATION}/events"],
    "export": [f"POST {APPLICATION}/export", f"GET {APPLICATION}/exports/{{id}}"],
    "fork": [f"POST {APPLICATION}/fork"],
    "gc": ["POST /v1/collections/plan", "POST /v1/collections"],
    "get": [f"GET {STATE}/keys", f"GET {STATE}/history", f"GET {STATE}/blame"],
    "import": ["POST /v1/imports", "PUT /v1/imports/{id}/content", "POST /v1/imports/{id}/application"],
    "key-groups": [f"GET {APPLICATION}/snapshots/{{snapshot}}/key-groups/{{table}}"],
    "lags": ["GET /v1/lags"],
    "lifecycle": [f"GET {APPLICATION}/lifecycle"],
    "lineage": [f"GET {APPLICATION}/lineage"],
    "logs": [f"GET {APPLICATION}/logs"],
    "message": [f"POST {SNAPSHOT}/message", f"GET {SNAPSHOT}/message", f"DELETE {SNAPSHOT}/message"],
    "nodes": ["GET /v1/nodes"],
    "operations cancel": ["POST /v1/operations/{id}/cancel"],
    "operations list": ["GET /v1/operations"],
    "operations show": ["GET /v1/operations/{id}"],
    "pin": [f"POST {SNAPSHOT}/pin", f"GET {APPLICATION}/pins"],
    "preflight": ["POST /v1/preflight"],
    "project create": ["POST /v1/projects"],
    "project delete": ["DELETE /v1/projects/{project}"],
    "project list": ["GET /v1/projects"],
    "project set": ["PUT /v1/projects/{project}"],
    "project show": ["GET /v1/projects/{project}"],
    "ps": ["GET /v1/applications"],
    "query add": [f"POST {APPLICATION}/queries"],
    "query drop": [f"POST {APPLICATION}/queries/{{query}}/drop"],
    "query list": [f"GET {APPLICATION}/queries"],
    "query pause": [f"POST {APPLICATION}/queries/{{query}}/pause"],
    "query results": [f"GET {APPLICATION}/queries/{{query}}/results"],
    "query resume": [f"POST {APPLICATION}/queries/{{query}}/resume"],
    "query show": [f"GET {APPLICATION}/queries/{{query}}"],
    "rekey": [f"POST {APPLICATION}/rekey"],
    "rescale": [f"POST {APPLICATION}/rescale"],
    "restart": [f"POST {APPLICATION}/restart"],
    "rollback": [f"POST {APPLICATION}/rollback"],
    "savepoint create": [f"POST {APPLICATION}/savepoints"],
    "savepoint delete": [f"DELETE {APPLICATION}/savepoints/{{savepoint}}"],
    "savepoint list": [f"GET {APPLICATION}/savepoints"],
    "scan": [f"GET {STATE}/scan"],
    "sessions end": ["DELETE /v1/sessions/{id}"],
    "sessions list": ["GET /v1/sessions"],
    "show": [f"GET {APPLICATION}", f"GET {APPLICATION}/load", f"GET {APPLICATION}/placement"],
    "start": [f"POST {APPLICATION}/start"],
    "stop": [f"POST {APPLICATION}/stop"],
    "submit": ["POST /v1/artifacts", "POST /v1/applications", f"GET {APPLICATION}/versions"],
    "tag": [f"POST {SNAPSHOT}/tags", f"GET {APPLICATION}/tags"],
    "tokens create": ["POST /v1/tokens"],
    "tokens delete": ["DELETE /v1/tokens/{id}"],
    "tokens list": ["GET /v1/tokens"],
    "tokens rotate": ["POST /v1/tokens/{id}/rotate"],
    **{f"transaction {verb}": [f"POST {APPLICATION}/transactions/{{sink}}/{{epoch}}/{{action}}"] for verb in RESOLVING},
    "transaction list": [f"GET {APPLICATION}/transactions"],
    "sink optimize": [f"POST {APPLICATION}/sinks/{{sink}}/optimize"],
    "unpin": [f"DELETE {SNAPSHOT}/pin"],
    "untag": [f"DELETE {SNAPSHOT}/tags/{{tag}}"],
    "upgrade": ["POST /v1/artifacts", f"POST {APPLICATION}/versions"],
    "verify": ["POST /v1/verifications"],
    "webhooks create": ["POST /v1/webhooks"],
    "webhooks delete": ["DELETE /v1/webhooks/{id}"],
    "webhooks list": ["GET /v1/webhooks"],
}
"""Routes of each command."""
LOCAL = {
    *("check", "run", "dev", "sdg explain", "up", "config show", "migrate", "doctor"),
    *("backup list", "backup verify", "backup restore", "store copy", "login", "logout", "context list", "context use"),
}
"""Commands that work on this machine, without a control plane's API."""


@pytest.mark.claim(
    "docs/reference/command-line.md: Every command that addresses a control plane uses its REST API, which is open to "
    "other programs. Commands that work on this machine have no route: `check`, `run`, "
    "`dev` and `sdg` on a pipeline's file; `up`, `config`, `migrate`, `doctor`, `store copy` and `backup list`, "
    "`verify` and `restore` for the operator; `login`, `logout` and `context`."
)
def test_every_command_has_its_routes_or_works_on_this_machine() -> None:
    commands = set(_commands(typer.main.get_command(app)))
    assert commands - LOCAL == set(REST), "list new commands in docs/reference/command-line.md and in this test"
    assert commands >= LOCAL
    routes = {
        f"{method} {route.path}"
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert {route for used in REST.values() for route in used} - routes == set()


def _commands(command: Any, *path: str) -> Iterator[str]:
    """Full names of ``command`` and of all commands below it."""
    if isinstance(command, typer.core.TyperGroup):
        for name, each in command.commands.items():
            yield from _commands(each, *path, name)
    else:
        yield " ".join(path)
