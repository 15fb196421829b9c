"""``epochal up`` from start to end, and the commands ``migrate`` and ``tokens``."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import epochal as package
from epochal.client import Client
from epochal.testing.servers.control_plane import COMMAND

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine


@pytest.mark.parametrize(
    ("signal_number", "format"),
    [
        (signal.SIGINT, "json"),
        pytest.param(signal.SIGTERM, "text", marks=pytest.mark.long),
    ],  # other tests end with SIGTERM
)
@pytest.mark.alternating(2)
def test_up_prints_its_address_and_stops_on_a_signal(
    alone: CommandLine, signal_number: signal.Signals, format: str
) -> None:
    process = subprocess.Popen(
        [COMMAND, "up", "--port", "0", "--json", "--log-format", format],
        env=alone.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
        announced = json.loads("".join(lines))
        token_file = Path(announced["token_file"])
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        with Client(announced["url"], token_file.read_text().strip()) as client:
            assert client.ready()
            assert client.applications.list() == []
        process.send_signal(signal_number)
        rest, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert rest == ""
        assert "Traceback" not in stderr
        if format == "json":
            records = [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]
            listed = next(record for record in records if record.get("path", "").startswith("/v1/applications"))
            assert listed["logger"] == "uvicorn.access" and listed["status"] == 200 and len(listed["request"]) == 16
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_migrate_creates_a_catalog_and_can_be_repeated(alone: CommandLine, tmp_path: Path) -> None:
    first = alone("migrate", "--json")
    assert first.code == 0, first.stderr
    assert (tmp_path / "home" / "catalog.sqlite").is_file()
    assert alone("migrate", "--json").document == first.document


def test_tokens_are_created_listed_and_deleted(epochal: CommandLine) -> None:
    made = epochal("tokens", "create", "ci", "--role", "operator", "--days", "2", "--json").document
    assert made["roles"] == {"default": "operator"}
    assert epochal("tokens", "create", "cd", "--role", "author", "--json").document["roles"] == {"default": "author"}
    listed = {token["id"]: token for token in epochal("tokens", "list", "--json").document["items"]}
    assert "token" not in listed[made["id"]]
    assert epochal("ps", EPOCHAL_TOKEN=made["token"]).code == 0
    lines = epochal("tokens", "list").output.splitlines()
    assert [next(line for line in lines if f" {name} " in line).split()[2] for name in ("ci", "cd")] == [
        "operator",
        "author",
    ]
    assert epochal("tokens", "delete", made["id"]).code == 0
    assert epochal("ps", EPOCHAL_TOKEN=made["token"]).code == 6


def test_a_token_is_rotated(epochal: CommandLine) -> None:
    made = epochal("tokens", "create", "nightly", "--json").document
    rotated = epochal("tokens", "rotate", made["id"])
    assert len(rotated.output.split()) == 1
    assert epochal("ps", EPOCHAL_TOKEN=made["token"]).code == 6
    assert epochal("ps", EPOCHAL_TOKEN=rotated.output.strip()).code == 0


def test_standard_output_contains_the_new_token_only(epochal: CommandLine) -> None:
    answer = epochal("tokens", "create", "script")
    assert len(answer.output.split()) == 1
    assert epochal("ps", EPOCHAL_TOKEN=answer.output.strip()).code == 0


def test_version_is_printed(alone: CommandLine) -> None:
    answer = alone("--version")
    assert (answer.code, answer.output) == (0, f"epochal {package.__version__}\n")


def test_help_documents_the_exit_codes(alone: CommandLine) -> None:
    assert "3 not found" in alone("--help").output
    names = ["up", "run", "check", "submit", "ps", "show", "logs", "start", "stop", "restart", "savepoint", "fork"]
    names += ["get", "lineage", "epochs", "tokens", "migrate"]
    for name in names:
        assert alone(name, "--help").code == 0


@pytest.mark.alternating(2)
def test_commands_with_results_have_the_option_json(alone: CommandLine) -> None:
    for command in ["up", "run", "check", "submit", "ps", "show", "logs", "start", "stop", "fork", "get", "lineage"]:
        assert "--json" in alone(command, "--help").output
    for command in ["create", "list", "delete"]:
        assert "--json" in alone("savepoint", command, "--help").output
    for command in ["create", "list", "rotate", "delete"]:
        assert "--json" in alone("tokens", command, "--help").output


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_up_starts_and_ends_bundled_servers(alone: CommandLine, postgresql_server: object) -> None:
    process = subprocess.Popen(
        [COMMAND, "up", "--port", "0", "--json", "--with", "postgresql", "--with", "kafka"],
        env=alone.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
            if not lines[-1]:
                pytest.skip((process.stderr.read() if process.stderr else "") or "a server is unavailable")
        servers = json.loads("".join(lines))["servers"]
        assert servers["postgresql"].endswith('password=secret("env:EPOCHAL_SECRET_POSTGRESQL")')
        host, _, port = servers["kafka"].removeprefix('servers="').removesuffix('"').partition(":")
        with socket.create_connection((host, int(port)), timeout=5):
            pass
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)), timeout=5)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_an_unknown_server_is_refused(alone: CommandLine) -> None:
    refused = alone("up", "--with", "kafak")
    assert refused.code != 0
    assert "kafka" in refused.stderr
    assert "Traceback" not in refused.stderr
