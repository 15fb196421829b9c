"""Durations of the steps of epochs: reported by drivers, stored with the epochs, shown over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.contracts.catalog import Failure
from epochal.contracts.measurements import DriverReport, EpochDurations, MeasuredEpoch, TaskSeconds
from epochal.errors import Fenced
from epochal.service.catalog import models

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

PATH = "/v1/applications/flights/epochs"
TASKS = {"T1": TaskSeconds(longest=0.5, total=0.75)}


@pytest.fixture
def driver(plane: Plane) -> Driver:
    plane.application()
    driver = plane.driver()
    driver.running()
    return driver


def report(number: int, *epochs: MeasuredEpoch) -> DriverReport:
    return DriverReport(number=number, epochs=epochs)


def measured(epoch: int, **steps: float) -> MeasuredEpoch:
    return MeasuredEpoch.model_validate({"epoch": epoch, "steps": steps, "tasks": TASKS})


def shown(plane: Plane, epoch: int) -> Any:
    return plane.get(f"{PATH}/{epoch}")["durations"]


def test_reported_durations_are_shown_with_the_epoch(plane: Plane, driver: Driver) -> None:
    driver.epochs(3)
    assert shown(plane, 1) is None
    driver.catalog.report(report(1, measured(1, E1=0.1, E7=0.7), measured(2, E1=0.2)))
    tasks = {"T1": {"longest": 0.5, "total": 0.75}}
    assert shown(plane, 1) == {"steps": {"E1": 0.1, "E7": 0.7}, "tasks": tasks, "parts": {}}
    driver.catalog.report(report(2, measured(2, E1=0.2, E2=2.0)))
    listed = {item["epoch"]: item["durations"] for item in plane.get(PATH)["items"]}
    assert listed[2]["steps"] == {"E1": 0.2, "E2": 2.0} and listed[1]["steps"]["E7"] == 0.7 and listed[3] is None
    with plane.control.database.reading() as session:
        (stored,) = session.query(models.Report).all()
        assert "epochs" not in stored.latest


def test_a_report_that_arrives_late_does_not_remove_steps(plane: Plane, driver: Driver) -> None:
    driver.epochs(1)
    driver.catalog.report(report(2, measured(1, E1=0.1, E2=0.2)))
    driver.catalog.report(report(1, measured(1, E1=0.1)))
    assert shown(plane, 1)["steps"] == {"E1": 0.1, "E2": 0.2}


def test_an_aborted_epoch_shows_the_steps_before_the_abort(plane: Plane, driver: Driver) -> None:
    driver.catalog.open_epoch(1, None)
    driver.catalog.abort_epoch(1, Failure(type="sink-unavailable", message="m"))
    driver.catalog.report(report(1, measured(1, E1=0.1)))
    assert shown(plane, 1)["steps"] == {"E1": 0.1}


def test_a_driver_times_only_epochs_of_its_attempt(plane: Plane, driver: Driver) -> None:
    driver.epochs(1)
    driver.catalog.report(report(1, measured(1, E1=0.1)))
    driver.catalog.finish(Failure(type="author-error", message="m"))
    successor = plane.driver()
    successor.running()
    successor.catalog.report(report(1, measured(1, E1=9.0), measured(99, E1=9.0)))
    assert shown(plane, 1)["steps"] == {"E1": 0.1}
    with pytest.raises(Fenced):
        driver.catalog.report(report(5, measured(1, E1=8.0)))
    assert shown(plane, 1)["steps"] == {"E1": 0.1}


def test_negative_durations_and_too_many_epochs_are_refused(plane: Plane, driver: Driver) -> None:
    driver.epochs(1)
    place = f"{plane.settings.internal_url}/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/report"
    headers = {"Authorization": f"Bearer {driver.ticket.token}"}
    one = {"epoch": 1, "steps": {"E1": 0.1}}
    for epochs in (
        [one] * 501,
        [{"epoch": 1, "steps": {"E1": -1}}],
        [{"epoch": 1, "steps": {"E1": 1e999}}],
        [{"epoch": 1, "parts": {"spark": -1}}],
    ):
        body = json.dumps({"number": 1, "epochs": epochs})
        answer = httpx.post(place, headers=headers, content=body, trust_env=False)
        assert answer.status_code == 422, answer.text
    assert shown(plane, 1) is None


def test_reported_parts_of_a_committed_epoch_are_shown(plane: Plane, driver: Driver) -> None:
    driver.epochs(2)
    parts = {"planning": 0.1, "spark": 0.2, "python": 0.7, "store": 0.3, "sink": 0.4, "protocol": 0.05}
    epoch = MeasuredEpoch.model_validate({"epoch": 2, "steps": {"E1": 0.1}, "parts": parts})
    driver.catalog.report(report(1, measured(1, E1=0.1), epoch))
    assert shown(plane, 2)["parts"] == parts and shown(plane, 1)["parts"] == {}
    with Client(plane.settings.url, token=plane.admin_token) as client:
        found = client.application("flights").epochs.get(2).durations
    assert found is not None and found.parts == parts
    schema = plane.get("/openapi.json")["components"]["schemas"]["EpochDurations"]["properties"]["parts"]
    assert schema["propertyNames"]["enum"] == list(parts)


def test_durations_of_a_driver_without_parts_are_shown(plane: Plane, driver: Driver) -> None:
    """Drivers of version 0.1.0 report steps only."""
    driver.epochs(1)
    with plane.control.database.writing() as session:
        session.query(models.Epoch).update({"durations": {"steps": {"E1": 0.5}, "tasks": {}}})
    assert shown(plane, 1) == {"steps": {"E1": 0.5}, "tasks": {}, "parts": {}}


def test_the_client_reads_durations(plane: Plane, driver: Driver) -> None:
    driver.epochs(1)
    driver.catalog.report(report(1, measured(1, E1=0.1)))
    with Client(plane.settings.url, token=plane.admin_token) as client:
        (epoch,) = client.application("flights").epochs.list()
    assert epoch.durations == EpochDurations.model_validate({"steps": {"E1": 0.1}, "tasks": TASKS})


def test_show_timing_prints_the_parts_of_committed_epochs(
    plane: Plane, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.token("viewer"))

    def show(*options: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["show", "flights", "--timing", *options])
        assert done.exit_code == code, done.output
        return done.output

    assert "No epoch of flights has been measured" in show()
    driver.epochs(2)
    parts = {"planning": 0.25, "spark": 0.5, "python": 3.0, "store": 0.25}
    driver.catalog.report(report(1, *(MeasuredEpoch.model_validate({"epoch": n, "parts": parts}) for n in (1, 2))))
    assert "Python takes most of the time: 75 %" in show()
    document = json.loads(show("--json"))
    assert (document["application"], document["epochs"], document["dominant"]) == ("flights", 2, "python")
    expected = {"median_seconds": 0.5, "share": 0.125, "slowest_seconds": 0.5, "slowest_epoch": 2}
    assert document["parts"]["spark"] == expected and document["parts"]["sink"]["share"] == 0
    assert "cannot be combined" in show("--plot", code=2)
