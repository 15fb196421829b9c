"""``epochal apply`` against a control plane over HTTP, with scripted drivers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from epochal.cli.main import app
from tests.service.conftest import Driver, Plane

Apply = Callable[..., Result]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "flights.py"
    write_code(file)
    return file


def write_code(file: Path, **content: Any) -> None:
    file.write_text("# " + json.dumps({"sinks": {"out": "files:{out}"}, **content}))


@pytest.fixture
def apply(plane: Plane, tmp_path: Path) -> Apply:
    """Runs the command on documents; by default without waiting."""

    def run(*documents: dict[str, Any], options: tuple[str, ...] = ("--no-wait",), token: str | None = None) -> Result:
        file = tmp_path / "applications.yaml"
        file.write_text("\n---\n".join(map(json.dumps, documents)))
        environment = {**plane.environment, "COLUMNS": "160"} | ({"EPOCHAL_TOKEN": token} if token else {})
        return CliRunner().invoke(app, ["apply", "-f", str(file), *options], env=environment)

    return run


def flights(**fields: Any) -> dict[str, Any]:
    return {"name": "flights", "code": "flights.py", "parameters": {"out": "/data/flights"}, **fields}


def done(result: Result, *expected: str) -> None:
    assert result.exit_code == 0, result.output
    for part in expected:
        assert part in result.stdout


def test_apply_creates_an_application_and_a_second_apply_changes_nothing(
    plane: Plane, apply: Apply, code: Path
) -> None:
    done(apply(flights(configuration={"parallelism": 3})), "flights: created, started")
    first = plane.get("/v1/applications/flights")
    assert (first["state"], first["configuration"]["parallelism"], first["version"]) == ("starting", 3, 1)
    before = plane.get("/v1/audit")["items"]
    done(apply(flights(configuration={"parallelism": 3})), "flights: unchanged")
    assert plane.get("/v1/applications/flights") == first
    assert plane.get("/v1/audit")["items"] == before


def test_changed_parameters_are_an_upgrade(plane: Plane, apply: Apply, code: Path) -> None:
    done(apply(flights()))
    driver = plane.driver()
    driver.running()
    driver.epoch()
    result = apply(flights(parameters={"out": "/data/flights", "limit": 15}), options=("--no-wait", "-m", "busier"))
    done(result, "flights: upgraded to version 2", "parameters.limit unset → 15")
    [directive] = driver.running()
    assert (directive.kind, directive.arguments["parameters"]["limit"]) == ("reconfigure", 15)
    assert plane.get("/v1/applications/flights/versions")["items"][0]["message"] == "busier"

    waits = apply(flights(parameters={"out": "/data/flights", "limit": 16}))
    assert waits.exit_code == 4 and "flights: " in waits.stderr and "upgrade" in waits.stderr


def test_an_upgrade_that_would_lose_state_is_refused(plane: Plane, apply: Apply, code: Path) -> None:
    table = {"id": "delays", "operator": "delays", "kind": "value"}
    key, value = [{"name": "origin", "type": "string"}], [{"name": "flights", "type": "bigint"}]
    write_code(code, tables=[{**table, "key": key, "value": value}])
    done(apply(flights()))
    driver = plane.driver()
    driver.running()
    driver.epoch()
    write_code(code, tables=[])
    refused = apply(flights())
    assert refused.exit_code == 1 and "delays" in refused.stderr
    assert plane.get("/v1/applications/flights")["version"] == 1 and driver.running() == []


def test_a_changed_parallelism_alone_is_a_rescale(plane: Plane, apply: Apply, code: Path) -> None:
    done(apply(flights()))
    driver = plane.driver()
    driver.running()
    driver.epoch()
    done(apply(flights(configuration={"parallelism": 4})), "flights: rescaled to 4")
    [operation] = [each for each in plane.get("/v1/operations")["items"] if each["kind"] == "rescale"]
    assert operation["state"] == "running"


def test_numbers_of_operators_alone_are_a_rescale(plane: Plane, apply: Apply, code: Path) -> None:
    write_code(code, nodes=[{"id": 1, "name": "delays", "type": "aggregate"}])
    done(apply(flights(state="stopped")))
    numbers = {"parallelism": 4, "parallelisms": {"delays": 16}}
    done(apply(flights(state="stopped", configuration=numbers)), "flights: rescaled to 4, delays 16")
    done(apply(flights(state="stopped", configuration={"parallelism": 4})), "flights: rescaled to delays default")
    configuration = plane.get("/v1/applications/flights")["configuration"]
    assert (configuration["parallelism"], configuration["parallelisms"]) == (4, {})
    refused = apply(flights(state="stopped", configuration={"parallelisms": {"delay": 3}, "parallelism": 4}))
    assert refused.exit_code == 1 and "no operator 'delay'. Did you mean 'delays'?" in refused.stderr


def test_apply_starts_and_stops_an_application(plane: Plane, apply: Apply, code: Path) -> None:
    done(apply(flights(state="stopped")), "flights: created")
    assert plane.get("/v1/applications/flights")["state"] == "created"
    done(apply(flights(configuration={"parallelism": 4})), "flights: rescaled to 4, started")
    driver = plane.driver()
    driver.running()
    done(apply(flights(state="stopped", configuration={"parallelism": 4})), "flights: stopped")
    driver.stop()
    stopped = plane.get("/v1/applications/flights")
    assert (stopped["state"], stopped["version"], stopped["configuration"]["parallelism"]) == ("stopped", 2, 4)
    done(apply(flights(state="stopped", configuration={"parallelism": 4})), "flights: unchanged")


def test_a_dry_run_reads_only(plane: Plane, apply: Apply, code: Path) -> None:
    reader = plane.token("viewer")
    new = apply(flights(), options=("--dry-run",), token=reader)
    done(new, "flights: created, started (dry run)")
    assert plane.get("/v1/applications")["items"] == [] and plane.get("/v1/artifacts")["items"] == []
    done(apply(flights()))
    write_code(code, nodes=[])
    changed = apply(flights(state="stopped"), options=("--dry-run",), token=reader)
    done(changed, "flights: stopped, upgraded (dry run)", "code ")
    assert plane.get("/v1/applications/flights")["version"] == 1
    assert len(plane.get("/v1/artifacts")["items"]) == 1
    assert apply(flights(state="stopped"), token=reader).exit_code == 6


def test_a_failed_document_sets_the_exit_code_and_others_are_applied(plane: Plane, apply: Apply, code: Path) -> None:
    wrong = {"name": "wrong", "artifact": "0" * 64}
    delays = {**flights(), "name": "delays", "parameters": {"out": "/data/delays"}}
    result = apply(wrong, flights(), delays)
    assert result.exit_code == 1
    assert "error: wrong: " in result.stderr and "Traceback" not in result.output
    done(apply(flights(), delays), "flights: unchanged", "delays: unchanged")

    answer = json.loads(apply(wrong, flights(), options=("--no-wait", "--json")).stdout)["items"]
    assert [(each["name"], each["actions"], each["exit_code"]) for each in answer] == [
        ("wrong", [], 1),
        ("flights", [], 0),
    ]


def test_an_invalid_document_prevents_every_change(plane: Plane, apply: Apply, code: Path) -> None:
    result = apply(flights(), {"name": "other", "code": "flights.py", "colour": "red"})
    assert "colour: unknown field" in str(result.exception)
    assert plane.get("/v1/applications")["items"] == []


def test_applications_missing_from_the_file_are_unchanged(plane: Plane, apply: Apply, code: Path) -> None:
    plane.application("other")
    done(apply(flights()))
    assert {each["name"] for each in plane.get("/v1/applications")["items"]} == {"flights", "other"}


def test_apply_with_wait_fails_when_the_upgrade_fails(plane: Plane, apply: Apply, code: Path) -> None:
    done(apply(flights(state="stopped")))
    write_code(code, wrong="no such column: delay")
    result = apply(flights(state="stopped"), options=())
    assert result.exit_code == 1
    assert "no such column: delay" in result.stderr and "upgraded" not in result.stdout


def test_apply_reads_documents_from_standard_input(plane: Plane, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(code.parent)
    environment = plane.environment
    text = "name: flights\ncode: flights.py\nparameters: {out: /data/flights}\nstate: stopped\n"
    result = CliRunner().invoke(app, ["apply", "-f", "-"], env=environment, input=text)
    done(result, "flights: created")
    assert CliRunner().invoke(app, ["apply"], env=environment).exit_code == 2


def test_a_stopped_application_is_upgraded_without_a_start(plane: Plane, apply: Apply, code: Path) -> None:
    done(apply(flights()))
    driver: Driver = plane.driver()
    driver.running()
    driver.epoch()
    plane.post("/v1/applications/flights/stop")
    driver.stop()
    done(apply(flights(state="stopped", parameters={"out": "/data/other"})), "flights: upgraded to version 2")
    assert plane.get("/v1/applications/flights")["state"] == "stopped"
