"""What the command line says and how it reads what it is given; no control plane needed."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from epochal import errors
from epochal.cli import words
from epochal.cli.failures import ExitCode, exit_code, sentence
from epochal.cli.main import app
from epochal.cli.options import configuration, parameters
from epochal.cli.output import encode
from epochal.client.models import (
    Head,
)
from epochal.contracts.configuration import Configuration
from epochal.declarations.names import alternatives

SLUG = re.compile(r"`([a-z-]+)`")
NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "just now"),
        (41, "41 s ago"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (7200, "2 h ago"),
        (172800, "2 d ago"),
    ],
)
def test_ages(seconds: float, said: str) -> None:
    assert words.age(NOW - timedelta(seconds=seconds), NOW) == said


@pytest.mark.parametrize(
    ("bytes", "said"), [(0, "0 B"), (1023, "1023 B"), (4300, "4.2 KiB"), (32 << 20, "32 MiB"), (None, "")]
)
def test_sizes(bytes: int | None, said: str) -> None:
    assert words.size(bytes) == said


def test_parameters_are_json_or_text_and_go_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "parameters.json"
    file.write_text('{"limit": 1, "kept": [1, 2]}')
    given = parameters(["limit=15", "name=JFK", "flag=true", "path=a=b", "empty="], file)
    assert given == {"limit": 15, "kept": [1, 2], "name": "JFK", "flag": True, "path": "a=b", "empty": ""}


@pytest.mark.parametrize("text", ["nothing", "=3"])
def test_a_parameter_that_is_no_pair_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="NAME=VALUE"):
        parameters([text])


@pytest.mark.parametrize("content", ["[1]", "{", None])
def test_a_parameters_file_that_holds_no_object_is_wrong_usage(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "parameters.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(typer.BadParameter, match=r"parameters\.json"):
        parameters(None, file)


def test_settings_are_nested_and_spark_names_are_kept_whole() -> None:
    given = configuration(["parallelism=4", "restart.max_restarts=2", "spark.executor.cores=1", "state_backend=heap"])
    assert given == {
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
def test_settings_that_are_lists(pairs: list[str] | None, dropped: list[str] | None, expected: list[str]) -> None:
    given = configuration(pairs, dropped)
    assert given == {"allow_dropped_state": expected}
    assert Configuration.model_validate(given).allow_dropped_state == tuple(expected)


@pytest.mark.parametrize("text", ["a,", ",", ""])
def test_an_empty_element_of_a_list_is_wrong_usage(text: str) -> None:
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
def test_exit_codes(error: type[errors.EpochalError], code: ExitCode) -> None:
    assert exit_code(error()) == code


def test_an_error_is_one_line_but_the_authors_own_traceback_is_shown() -> None:
    assert sentence(errors.SinkError("The sink is full.\nlong detail")) == "The sink is full."
    assert sentence(errors.AuthorError("ZeroDivisionError\n  flights.py, line 3")).endswith("line 3")


def test_documents_of_many_have_items() -> None:
    epoch = Head(branch="main", epoch=3, committed_at=NOW, drained=False)
    assert json.loads(encode([epoch]))["items"][0]["epoch"] == 3
    assert json.loads(encode(epoch))["committed_at"].startswith("2024-05-01T12:00:00")


def every_error(kind: type[errors.EpochalError] = errors.EpochalError) -> Iterator[type[errors.EpochalError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from every_error(child)


def test_the_documented_exit_codes_are_those_of_every_error() -> None:
    importlib.import_module("epochal.service.app")  # which declares errors of its own
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    rows = re.findall(r"^(\| (\d+) \|.*)$", page, re.MULTILINE)
    documented = {slug: int(code) for row, code in rows for slug in SLUG.findall(row)}
    found = {kind.slug: int(exit_code(kind("x"))) for kind in every_error() if "slug" in vars(kind)}
    assert documented.items() <= found.items()
    assert {slug for slug, code in found.items() if code != ExitCode.FAILED} == set(documented)


def test_a_name_that_is_not_there_comes_with_what_is() -> None:
    assert alternatives("flihgts", ["flights", "orders"]) == " Did you mean 'flights'?"
    assert alternatives("x", ["orders", "flights"]) == " There are: flights, orders."
    assert alternatives("x", []) == " There are none yet."
    assert alternatives("x", [f"application-{number}" for number in range(9)]) == ""


def commands(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, str]]:
    for group in app.registered_groups:
        yield from commands(group.typer_instance, f"{group.name} " if isinstance(group.name, str) else prefix)
    for command in app.registered_commands:
        assert command.callback is not None
        yield f"{prefix}{command.name or command.callback.__name__}", inspect.getsource(command.callback)


def test_whatever_waits_can_be_told_not_to_and_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text().partition("## Waiting")[2]
    waits = ("session.wait", "_finish(", "_answer(", "_begun(")
    waiting = {name for name, code in commands(app) if any(call in code for call in waits)}
    assert waiting >= {"submit", "stop", "transaction retry", "gc", "export"}
    for name, code in commands(app):
        assert ("wait: Wait = True" in code) == (name in waiting), name
        assert name not in waiting or f"`{name}" in page, name
