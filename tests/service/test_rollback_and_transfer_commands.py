"""The commands ``epochal rollback``, ``export`` and ``import`` and their client, against scripted drivers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.client.bundles import sha256_of
from epochal.errors import Conflict, FileCorrupt, InvalidInput
from tests.service.conftest import Driver, Plane

Command = Callable[..., Result]


def run(plane: Plane, *arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, [*arguments], env={**plane.environment, "COLUMNS": "160"}, input=input)


def document(plane: Plane, *arguments: str) -> Any:
    result = run(plane, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def client(plane: Plane) -> Iterator[Client]:
    with Client(plane.settings.url, plane.admin_token) as client:
        yield client


@pytest.fixture
def stopped(plane: Plane) -> Driver:
    """The driver of a stopped application with five epochs of ten rows each."""
    plane.application()
    driver = plane.driver()
    driver.running()
    for _ in range(5):
        driver.epoch(sinks={"out": 10})
    plane.post("/v1/applications/flights/stop")
    driver.stop()
    return driver


def test_a_dry_run_of_a_rollback_changes_nothing(plane: Plane, stopped: Driver) -> None:
    result = run(plane, "rollback", "flights", "--epoch", "2", "--dry-run")
    assert result.exit_code == 0
    for text in ("from epoch 5 to epoch 2", "3 epochs (3 to 5)", "files:/out", "30", "stays", "--move-aside"):
        assert text in result.stdout or text == "--move-aside"
    plan = document(plane, "rollback", "flights", "--epoch", "2", "--dry-run")
    assert (plan["epochs"], plan["sinks"][0]["rows"]) == (3, 30)
    assert plane.get("/v1/applications/flights")["branch"] == stopped.point.branch


def test_a_rollback_requires_confirmation(plane: Plane, stopped: Driver) -> None:
    refused = run(plane, "rollback", "flights", "--epoch", "2", input="n\n")
    assert refused.exit_code == 1
    assert plane.get("/v1/applications/flights")["branch"] == stopped.point.branch
    done = run(plane, "rollback", "flights", "--epoch", "2", "-m", "wrong fares", input="y\n")
    assert done.exit_code == 0 and "is at epoch 2" in done.stdout
    assert plane.get("/v1/applications/flights")["head"]["epoch"] == 2


def test_a_rollback_with_yes_needs_no_confirmation(plane: Plane, stopped: Driver) -> None:
    operation = document(plane, "rollback", "flights", "--epoch", "3", "--move-aside", "--yes")
    assert (operation["state"], operation["result"]["parent"]["epoch"]) == ("succeeded", 3)
    assert run(plane, "rollback", "flights", "--epoch", "99", "--yes").exception is not None
    assert run(plane, "rollback", "flights", "--at", "yesterday", "--yes").exit_code == 2


def test_a_rollback_by_the_client_needs_a_confirmed_plan(client: Client, stopped: Driver) -> None:
    rollback = client.application("flights").rollback
    with pytest.raises(Conflict, match="Request the plan"):
        rollback.to(epoch=2)
    plan = rollback.plan(epoch=2)
    assert rollback.to(epoch=2, confirm=plan.confirm).state == "succeeded"


@pytest.mark.alternating(2)
def test_export_and_import_commands_move_an_application(
    plane: Plane, other: Plane, stopped: Driver, tmp_path: Path
) -> None:
    file = tmp_path / "moving.epochal"
    result = document(plane, "export", "flights", "-o", str(file), "--epoch", "4")
    assert (result["epoch"], result["sha256"]) == (4, sha256_of(file))

    refused = run(other, "import", str(file))
    assert isinstance(refused.exception, InvalidInput) and "map it" in str(refused.exception)
    shown = run(other, "import", str(file), "--dry-run")
    assert "becomes flights" in shown.stdout and "map it" in shown.stdout
    done = document(other, "import", str(file), "--name", "copy", "--map", "/data/flights=/new", "-m", "moved")
    assert (done["state"], done["result"]["application"]) == ("succeeded", "copy")
    application = other.get("/v1/applications/copy")
    assert (application["parameters"], application["head"]["epoch"]) == ({"out": "/new"}, 4)


def test_an_interrupted_download_is_resumed(plane: Plane, client: Client, stopped: Driver, tmp_path: Path) -> None:
    exports = client.application("flights").exports
    operation = client.operations.wait(exports.create())
    whole = tmp_path / "whole"
    exports.fetch(operation, whole)
    content = whole.read_bytes()
    seen: list[int] = []
    broken = tmp_path / "broken"
    broken.with_name("broken.part").write_bytes(content[:700])
    exports.fetch(operation, broken, lambda done, _size: seen.append(done))
    assert broken.read_bytes() == content and min(seen) > 700

    broken.with_name("broken.part").write_bytes(b"x" * 700)
    with pytest.raises(FileCorrupt, match="has been deleted; fetch it again"):
        exports.fetch(operation, broken)
    assert not broken.with_name("broken.part").exists()


def test_an_interrupted_upload_is_resumed(
    plane: Plane, client: Client, stopped: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.client.bundles.PART_BYTES", 500)
    exports = client.application("flights").exports
    file = tmp_path / "bundle"
    exports.fetch(client.operations.wait(exports.create()), file)
    size = file.stat().st_size

    class Interrupted(Exception):
        pass

    def interrupt(done: int, _size: int) -> None:
        if done > 600:
            raise Interrupted

    with pytest.raises(Interrupted):
        client.imports.upload(file, interrupt)
    (begun,) = client.imports.list()
    assert begun.received == 1000
    seen: list[int] = []
    upload = client.imports.upload(file, lambda done, _size: seen.append(done))
    assert (upload.id, upload.received, seen[0]) == (begun.id, size, 1500)
    client.imports.delete(upload.id)
    assert client.imports.list() == []
