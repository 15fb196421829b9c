"""The client without a server: location, errors, events and keys."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import httpx
import pytest

from epochal.client.events import parse_events
from epochal.client.exchanges import key_segment, path
from epochal.client.location import home, locate
from epochal.client.operations import poll
from epochal.errors import (
    CatalogUnavailable,
    Conflict,
    EpochalError,
    InvalidInput,
    InvalidKey,
    NameTaken,
    NotFound,
    NotYetCommitted,
    OptionError,
    SinkError,
    SnapshotExpired,
)
from epochal.service.domain.settings import default_data_directory
from epochal.state import table
from epochal.wire.problems import (
    PREFIX,
    STATUSES,
    FieldError,
    Problem,
    error_by_name,
    error_of_problem,
    error_of_response,
    problem_of,
)
from epochal.wire.state import StateKind, StateScope


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EPOCHAL_URL", "EPOCHAL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EPOCHAL_HOME", str(tmp_path))


def test_arguments_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_URL", "http://10.0.0.7:9000/")
    monkeypatch.setenv("EPOCHAL_TOKEN", "from-environment")
    assert locate().url == "http://10.0.0.7:9000"
    assert locate().token == "from-environment"
    assert locate("http://127.0.0.1:1", "given").token == "given"


@pytest.mark.parametrize(
    ("url", "token"),
    [
        (None, "secret"),
        ("http://127.0.0.1:9", "secret"),
        ("http://localhost:9", "secret"),
        ("http://[::1]:9", "secret"),
        ("http://10.0.0.7:8765", None),
        ("https://epochal.example.org", None),
    ],
)
def test_the_local_admin_token_is_sent_to_this_machine_only(tmp_path: Path, url: str | None, token: str | None) -> None:
    (tmp_path / "admin.token").write_text("secret\n")
    assert locate(url).token == token


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8765", "http://", "http://host:nine"])
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match=r"http://127\.0\.0\.1:8765"):
        locate(url)


def test_client_and_control_plane_use_the_same_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert home() == default_data_directory()
    monkeypatch.delenv("EPOCHAL_HOME")
    assert home() == default_data_directory()


@pytest.mark.parametrize(
    ("slug", "status", "kind"),
    [
        ("name-taken", 409, NameTaken),
        ("snapshot-expired", 410, SnapshotExpired),
        ("invalid-key", 422, InvalidKey),
        ("something-newer", 404, NotFound),
        ("something-newer", 409, Conflict),
        ("something-newer", 503, CatalogUnavailable),
        ("something-newer", 418, EpochalError),
    ],
)
def test_problems_are_read_as_their_original_errors(slug: str, status: int, kind: type[EpochalError]) -> None:
    error = error_of_problem(Problem(type=PREFIX + slug, title="Title", status=status, detail="What to do."))
    assert type(error) is kind
    assert error.message == "What to do."


def test_every_error_survives_the_round_trip() -> None:
    def all_below(kind: type[EpochalError]) -> list[type[EpochalError]]:
        return [kind, *(below for child in kind.__subclasses__() for below in all_below(child))]

    for kind in all_below(EpochalError):
        error = error_of_problem(problem_of(kind("x")))
        assert error.slug == kind.slug


def test_each_status_is_read_as_an_error_with_that_status() -> None:
    for status in set(STATUSES.values()):
        error = error_of_problem(Problem(type=PREFIX + "something-newer", title="", status=status, detail="x"))
        # 400 is also the status of malformed requests; an unknown type with it is not an invalid cursor.
        assert STATUSES[type(error)] == status or (status, type(error)) == (400, InvalidInput)


def test_problems_of_newer_versions_are_read() -> None:
    document = {"type": PREFIX + "invalid-input", "detail": "Bad.", "errors": [{"field": "a", "message": "b", "x": 1}]}
    error = error_of_response(httpx.Response(422, json={**document, "help": "https://"}))
    assert (type(error), error.message) == (InvalidInput, "Bad. (a: b)")


class ServerSinkError(SinkError):
    """Has no slug of its own."""


@pytest.mark.parametrize("parse", [error_of_response, error_by_name])
def test_a_class_without_a_slug_is_read_as_its_parent(parse: Callable[[httpx.Response], EpochalError]) -> None:
    problem = problem_of(ServerSinkError("It is full."))
    error = parse(httpx.Response(422, content=problem.model_dump_json()))
    assert (type(error), error.message) == (SinkError, "It is full.")


def test_drivers_do_not_infer_errors_from_the_status() -> None:
    request = httpx.Request("GET", "http://127.0.0.1:80/internal/v1")
    for answer in (
        httpx.Response(404, request=request, text="<html>nginx</html>"),
        httpx.Response(404, request=request, json={"type": PREFIX + "something-newer", "status": 404, "detail": "x"}),
    ):
        assert isinstance(error_of_response(answer), NotFound)
        assert type(error_by_name(answer)) is EpochalError


def test_fields_of_a_validation_error_are_in_the_message() -> None:
    errors = [FieldError(field="configuration.parallelism", message="must be at least 1")]
    problem = Problem(type=PREFIX + "invalid-input", title="Invalid", status=422, detail="Not valid.", errors=errors)
    error = error_of_problem(problem)
    assert error.message == "Not valid. (configuration.parallelism: must be at least 1)"
    assert isinstance(error, InvalidInput)


def test_responses_of_other_servers_name_the_url_setting() -> None:
    request = httpx.Request("GET", "http://127.0.0.1:80/v1/applications")
    error = error_of_response(httpx.Response(404, request=request, text="<html>nginx</html>"))
    assert isinstance(error, NotFound)
    assert "EPOCHAL_URL" in error.message


def test_server_sent_events_are_parsed() -> None:
    stream = [
        ": hello",
        "",
        "id: 7",
        "event: epoch",
        'data: {"application": "flights",',
        'data:  "epoch": 3}',
        "",
        "event: epoch",
        "",
        "id: 8",
        "event: savepoint",
        "data:{}",
        "",
        "data: {",
    ]
    events = list(parse_events(stream))
    assert [(event.id, event.kind, event.data) for event in events] == [
        ("7", "epoch", {"application": "flights", "epoch": 3}),
        ("8", "savepoint", {}),
    ]


def test_paths_and_keys_are_percent_encoded() -> None:
    assert path("applications", "a/b", "epochs", 3) == "/v1/applications/a%2Fb/epochs/3"
    assert key_segment(("JFK", "LAX")) == "JFK,LAX"
    assert key_segment(("a,b/c", 7, True, date(2013, 1, 2))) == "a%2Cb%2Fc,7,true,2013-01-02"
    assert key_segment(("JFK", None)) == "JFK,%00"
    with pytest.raises(InvalidKey, match="represents null"):
        key_segment(("JFK", "\0"))


def test_polling_reports_each_answer_until_the_condition_holds() -> None:
    answers = iter([2, 3])
    seen: list[int] = []
    ended = poll(
        1,
        lambda: next(answers),
        until=lambda now: now == 3,
        on_progress=seen.append,
        timeout_seconds=None,
        what="three",
    )
    assert (ended, seen) == (3, [1, 2, 3])
    with pytest.raises(NotYetCommitted, match="four"):
        poll(1, lambda: 1, until=lambda now: False, on_progress=None, timeout_seconds=0, what="four")


def test_client_and_wire_require_only_httpx_and_pydantic() -> None:
    absent = ["fastapi", "starlette", "sqlalchemy", "pyspark", "pyarrow", "numpy", "typer", "rich"]
    program = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({absent}))
import epochal.client, epochal.wire
for package in (epochal.client, epochal.wire):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
epochal.Client
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_state_enums_are_equal_in_wire_and_core() -> None:
    assert list(StateKind) == list(table.StateKind)
    assert list(StateScope) == list(table.StateScope)
