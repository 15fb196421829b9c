"""Errors of commands: one sentence on standard error, a documented exit code, and no traceback."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text

if TYPE_CHECKING:
    from epochal.testing.servers.control_plane import ControlPlane
    from tests.service.cli.conftest import Answer, CommandLine


def refused(answer: Answer, code: int, *expected: str) -> None:
    assert answer.code == code, answer
    assert "Traceback" not in answer.stderr
    for part in expected:
        assert part in answer.stderr
    (sentence,) = answer.stderr.strip().splitlines()
    assert sentence.startswith("error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "unknown"],
        ["start", "unknown"],
        ["stop", "unknown"],
        ["restart", "unknown"],
        ["epochs", "unknown"],
        ["lineage", "unknown"],
        ["logs", "unknown"],
        ["get", "unknown", "table", "key"],
        ["savepoint", "list", "unknown"],
        ["savepoint", "create", "unknown", "name"],
        ["savepoint", "delete", "unknown", "name"],
        ["fork", "unknown", "other"],
        ["delete", "unknown", "--yes"],
        ["tokens", "delete", "unknown"],
    ],
    ids=" ".join,
)
def test_an_unknown_name_exits_with_3(epochal: CommandLine, arguments: list[str]) -> None:
    refused(epochal(*arguments), 3, "unknown")


def test_artifacts_are_listed_and_deleted(epochal: CommandLine, plane: ControlPlane, tmp_path: Path) -> None:
    file = tmp_path / "unused.py"
    file.write_text(f"pipeline = None  # {tmp_path}")
    with plane.client() as client:
        sha256 = client.artifacts.upload(file).sha256

    assert sha256[:8] in epochal("artifacts", "list").output
    assert epochal("artifacts", "delete", sha256[:8], "--json").document == {"deleted": sha256}
    assert epochal("artifacts", "delete", sha256).code == 0
    assert epochal("artifacts", "delete", sha256[:8]).code == 3


def test_with_json_an_error_is_a_json_document(epochal: CommandLine) -> None:
    answer = epochal("show", "unknown", "--json")
    refused(answer, 3)
    error = answer.document["error"]
    assert error["type"] == "not-found"
    assert "unknown" in error["message"]


def test_a_wrong_token_exits_with_6(epochal: CommandLine) -> None:
    refused(epochal("ps", EPOCHAL_TOKEN="wrong"), 6, "token")


def test_an_insufficient_role_exits_with_6(epochal: CommandLine, sensors: Path) -> None:
    token = epochal("tokens", "create", "reader", "--role", "viewer", "--json").document["token"]
    assert epochal("ps", EPOCHAL_TOKEN=token).code == 0
    refused(epochal("submit", sensors, "--name", "sensors", EPOCHAL_TOKEN=token), 6, "author")


def test_without_a_control_plane_the_exit_code_is_5(alone: CommandLine) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    refused(alone("ps", "--url", url), 5, url, "`epochal up`")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["get", "flights"],
        ["ps", "--colour"],
        ["submit", "flights.py", "--name", "flights", "-p", "no-pair"],
        ["fork", "flights", "other", "--epoch", "3", "--savepoint", "kept"],
        ["fork", "flights", "other", "--at", "yesterday"],
        ["up", "--port", "99999"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(alone: CommandLine, arguments: list[str]) -> None:
    answer = alone(*arguments)
    assert answer.code == 2
    assert "Usage: epochal" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_missing_file_is_refused(epochal: CommandLine) -> None:
    refused(epochal("submit", "missing/flights.py", "--name", "flights"), 1, "missing/flights.py", "check the path")


def test_an_invalid_setting_is_refused(epochal: CommandLine, sensors: Path, tmp_path: Path) -> None:
    answer = epochal("submit", sensors, "--name", "x", "-p", f"output={tmp_path}/out", "--set", "parallelism=0")
    refused(answer, 1, "parallelism")
    assert answer.stderr.count("greater than or equal to 1") == 1


@pytest.mark.parametrize("command", [pytest.param("up", marks=pytest.mark.long), "migrate"])
@pytest.mark.alternating(2)
def test_a_newer_catalog_is_refused(alone: CommandLine, tmp_path: Path, command: str) -> None:
    (tmp_path / "home").mkdir()
    assert alone("migrate").code == 0
    engine = create_engine(f"sqlite:///{tmp_path / 'home' / 'catalog.sqlite'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    refused(alone.spawn("up", "--port", "0") if command == "up" else alone(command), 1, "9999", "newer")


def test_a_port_in_use_is_refused(plane: ControlPlane, alone: CommandLine) -> None:
    port = plane.url.rpartition(":")[2]
    refused(alone("up", "--port", port), 1, f"Port {port}", "--port")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--host", "192.0.2.1"], ["192.0.2.1", "--host"]),
        (["--host", "0.0.0.0", "--no-authentication"], ["authentication", "127.0.0.1"]),
        (["--database-url", "oracle://x"], ["oracle", "PostgreSQL"]),
    ],
    ids=["address of another machine", "other machines without authentication", "unsupported database"],
)
def test_up_refuses_invalid_options(alone: CommandLine, options: list[str], expected: list[str]) -> None:
    refused(alone("up", "--port", "0", *options), 1, *expected)


@pytest.mark.parametrize("command", [["up", "--port", "0"], ["check", "sensors.py"], ["run", "sensors.py"]])
def test_commands_without_java_are_refused(
    alone: CommandLine, sensors: Path, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    alone.environment.pop("JAVA_HOME", None)
    words = [str(sensors) if argument == "sensors.py" else argument for argument in command]
    parameters = [] if command[0] == "up" else ["-p", f"output={tmp_path}/out"]
    refused(alone(*words, *parameters, PATH=str(tmp_path / "empty")), 1, "Java")


def test_a_java_that_is_too_old_is_refused(alone: CommandLine, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    refused(alone("up", "--port", "0", JAVA_HOME=str(tmp_path / "jdk")), 1, "Java 11", "17")


def test_a_query_node_without_catalog_or_store_is_refused(alone: CommandLine, tmp_path: Path) -> None:
    refused(alone("up", "--workers", "3", "--port", "0"), 1, "epochal up --role query --workers 3")
    query = ("up", "--role", "query", "--port", "0")
    refused(alone(*query, "--with", "kafka"), 1, "--with")
    refused(alone(*query), 1, str(tmp_path / "home" / "catalog.sqlite"), "--database-url", "--home")
    other = f"sqlite:///{tmp_path / 'other.sqlite'}"
    refused(alone(*query, "--database-url", other), 1, str(tmp_path / "home" / "store"), "--store")
    refused(alone(*query, "--database-url", other, "--store", str(tmp_path)), 1, "revision none", "epochal migrate")


@pytest.mark.parametrize("url", ["postgresql://me:secret@db/epochal", "postgresql://me@db/epochal?password=secret"])
@pytest.mark.parametrize("command", [("up", "--port", "0"), ("migrate",)])
def test_a_password_among_the_arguments_is_refused(alone: CommandLine, url: str, command: tuple[str, ...]) -> None:
    answer = alone(*command, "--database-url", url)
    refused(answer, 1, "password", "EPOCHAL_DATABASE_URL")
    assert "secret" not in answer.stderr


def test_the_database_url_is_read_from_the_environment(alone: CommandLine, tmp_path: Path) -> None:
    alone("migrate", EPOCHAL_DATABASE_URL=f"sqlite:///{tmp_path / 'other.sqlite'}")
    assert (tmp_path / "other.sqlite").is_file()


def test_debug_mode_prints_the_traceback(alone: CommandLine) -> None:
    answer = alone.spawn("submit", "missing.py", "--name", "x", EPOCHAL_DEBUG="1")
    assert answer.code == 1
    assert "Traceback" in answer.stderr
