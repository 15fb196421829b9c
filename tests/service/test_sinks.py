"""Compaction of the tables of sinks over HTTP and from the command line: requests, refusals, progress and results."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.cli.main import main
from epochal.cli.sinks import said
from epochal.client import Client
from epochal.contracts.catalog import Failure, OptimizeResult
from epochal.errors import Conflict, InvalidInput, NotFound
from epochal.wire.internal_api import RESULT_HEADER

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

SINKS = {
    "orders": "delta:/data/orders",
    "sales": "iceberg:http://127.0.0.1:9/warehouse/sales.orders",
    "out": "files:/data/out",
}
PATH = "/v1/applications/flights/sinks"
RESULT = OptimizeResult(
    sink="orders", files_removed=120, files_added=2, bytes_removed=3_000_000, bytes_added=1_000_000, version=41
)


@pytest.fixture
def driver(plane: Plane) -> Driver:
    created(plane)
    driver = plane.driver()
    driver.running()
    return driver


def created(plane: Plane, **more: Any) -> None:
    plane.application(artifact=plane.artifact(SINKS), parameters={}, **more)


def operation(plane: Plane, id: str) -> Any:
    return plane.get(f"/v1/operations/{id}")


def optimized(plane: Plane, sink: str = "orders") -> httpx.Response:
    return plane.client.post(f"{PATH}/{sink}/optimize")


def test_the_driver_is_directed_and_its_progress_and_result_are_shown(plane: Plane, driver: Driver) -> None:
    begun = optimized(plane).json()
    assert (begun["kind"], begun["application"], begun["state"]) == ("optimize", "flights", "running")
    assert begun["progress"] == "waiting for the driver"
    (directive,) = driver.running()
    assert (directive.kind, directive.arguments) == ("optimize", {"sink": "orders"})
    driver.catalog.note_progress(directive.id, "compacting: 120 of 122 files")
    assert operation(plane, begun["id"])["progress"] == "compacting: 120 of 122 files"
    driver.catalog.complete(directive.id, None, None, RESULT)
    done = operation(plane, begun["id"])
    assert (done["state"], done["progress"], done["result"]) == ("succeeded", None, RESULT.model_dump())
    assert driver.running() == []
    assert f"{PATH}/orders/optimize" in [entry["target"] for entry in plane.get("/v1/audit")["items"]]


def test_progress_after_the_end_changes_nothing(plane: Plane, driver: Driver) -> None:
    begun = optimized(plane).json()
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, None, None, RESULT)
    driver.catalog.note_progress(directive.id, "late")
    assert operation(plane, begun["id"])["progress"] is None


def test_an_error_of_the_driver_ends_the_operation(plane: Plane, driver: Driver) -> None:
    begun = optimized(plane).json()
    (directive,) = driver.running()
    driver.catalog.complete(
        directive.id, None, Failure(type="sink-error", message="Sink 'orders': the table was deleted.")
    )
    failed = operation(plane, begun["id"])
    assert failed["state"] == "failed" and "the table was deleted" in failed["error"]["detail"]


@pytest.mark.parametrize(
    ("sink", "status", "slug", "said"),
    [
        ("nothing", 404, "not-found", "has no sink 'nothing'. Its sinks: orders, out, sales."),
        ("out", 422, "invalid-input", "does not write a Delta table"),
        ("sales", 422, "invalid-input", "rewrite_data_files('sales.orders')`. The sink tolerates it"),
    ],
)
def test_other_sinks_are_refused_with_the_way_out(
    plane: Plane, driver: Driver, sink: str, status: int, slug: str, said: str
) -> None:
    answer = optimized(plane, sink)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:epochal:problem:{slug}")
    assert said in answer.json()["detail"]
    assert driver.running() == []
    assert [item["kind"] for item in plane.get("/v1/operations")["items"]] == ["start"]


def test_an_application_that_does_not_run_is_refused(plane: Plane) -> None:
    created(plane, start=False)
    answer = optimized(plane)
    assert answer.status_code == 409
    assert "is not running" in answer.json()["detail"] and "`epochal start flights`" in answer.json()["detail"]
    assert optimized(plane, "nothing").status_code == 404


def test_a_stopping_application_is_refused(plane: Plane, driver: Driver) -> None:
    plane.post("/v1/applications/flights/stop")
    assert optimized(plane).status_code == 409


def test_a_second_compaction_waits_for_the_first(plane: Plane, driver: Driver) -> None:
    first = optimized(plane).json()
    refused = optimized(plane)
    assert refused.status_code == 409 and f"optimize {first['id']}" in refused.json()["detail"]
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, None, None, RESULT)
    assert optimized(plane).status_code == 202


def test_a_viewer_may_not_compact(plane: Plane, driver: Driver) -> None:
    with plane.as_bearer(plane.token("viewer")) as client:
        assert client.post(f"{PATH}/orders/optimize").status_code == 403
    with plane.as_bearer(plane.token("operator")) as client:
        assert client.post(f"{PATH}/orders/optimize").status_code == 202


def test_other_operations_begin_meanwhile_and_a_stop_ends_it(plane: Plane, driver: Driver) -> None:
    begun = optimized(plane).json()
    plane.post("/v1/applications/flights/savepoints", name="meanwhile")
    plane.post("/v1/applications/flights/stop")
    driver.catalog.finish(None)
    ended = operation(plane, begun["id"])
    assert ended["state"] == "failed"
    assert "stopped before the optimize was done" in ended["error"]["detail"]


def test_the_next_attempt_receives_the_directive_of_a_lost_driver(plane: Plane, driver: Driver) -> None:
    begun = optimized(plane).json()
    (before,) = driver.running()
    lost = Failure(type="driver-lost", message="killed")
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", lost)
    successor = plane.driver()
    (again,) = successor.running()
    assert again == before
    successor.catalog.complete(again.id, None, None, RESULT)
    assert operation(plane, begun["id"])["state"] == "succeeded"


def test_a_result_that_is_none_is_refused(plane: Plane, driver: Driver) -> None:
    begun = optimized(plane).json()
    (directive,) = driver.running()
    place = f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/directives/{directive.id}"
    headers = {"Authorization": f"Bearer {driver.ticket.token}", RESULT_HEADER: '{"sink": 3}'}
    answer = httpx.post(plane.settings.internal_url + place, headers=headers, json={"head": None}, trust_env=False)
    assert answer.status_code == 422
    assert operation(plane, begun["id"])["state"] == "running"


def test_a_driver_reports_progress_of_its_own_directives_only(plane: Plane, driver: Driver) -> None:
    with pytest.raises(NotFound, match="no directive"):
        driver.catalog.note_progress("0" * 32, "compacting")


def test_the_client_raises_the_refusals(plane: Plane, driver: Driver) -> None:
    with Client(plane.settings.url, token=plane.admin_token) as client:
        sinks = client.application("flights").sinks
        assert sinks.optimize("orders").kind == "optimize"
        with pytest.raises(InvalidInput, match="Iceberg"):
            sinks.optimize("sales")
        with pytest.raises(NotFound):
            sinks.optimize("nothing")
        with pytest.raises(Conflict):
            sinks.optimize("orders")


def test_the_command_without_waiting_names_the_operation(
    plane: Plane, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in plane.environment.items():
        monkeypatch.setenv(name, value)
    assert "Requested from the driver by operation" in command("sink", "optimize", "flights", "orders", "--no-wait")
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, None, None, RESULT)
    assert "optimize" in command("operations", "list")


def test_the_command_names_what_was_replaced(plane: Plane, driver: Driver) -> None:
    begun = optimized(plane).json()
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, None, None, RESULT)
    with Client(plane.settings.url, token=plane.admin_token) as client:
        done = client.operations.get(begun["id"])
    assert said("orders", done) == (
        "120 files (2.9 MiB) of the table of sink orders were replaced by 2 (977 KiB), in version 41."
    )
    nothing = RESULT.model_copy(update={"files_removed": 0, "files_added": 0, "version": None}).model_dump()
    assert "no small files" in said("orders", done.model_copy(update={"result": nothing}))


def test_submit_prints_the_warnings_of_the_analysis(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in plane.environment.items():
        monkeypatch.setenv(name, value)
    warning = "Sink 'orders': the retention of the table is 'interval 1 hour'."
    (tmp_path / "flights.py").write_text("# " + json.dumps({"sinks": SINKS, "warnings": [warning]}))
    with pytest.raises(SystemExit) as ended:
        main(["submit", str(tmp_path / "flights.py"), "--name", "flights", "--no-start", "--json"])
    assert not ended.value.code
    printed = capsys.readouterr()
    assert f"warning: {warning}" in " ".join(printed.err.split())
    assert json.loads(printed.out)["name"] == "flights"


def command(*arguments: str) -> str:
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()), pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert not ended.value.code
    return out.getvalue()
