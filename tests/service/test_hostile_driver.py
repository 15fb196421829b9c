"""A driver runs an author's code, which has its token: what that opens, and for how long."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from epochal.contracts.catalog import EpochCounts, EpochTerms, Failure, ManifestReference
from epochal.errors import Conflict, EpochalError, Fenced, InvalidInput
from tests.service.conftest import Driver, Plane

SHA256 = "0" * 64
LOST = Failure(type="driver-lost", message="not heard")


def path_of(driver: Driver, rest: str) -> str:
    return f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/{rest}"


def everything(driver: Driver, client: httpx.Client) -> dict[str, httpx.Response]:
    """Every call that a driver can make, with bodies that are in order."""
    assert driver.head is not None
    parent = {"branch": driver.head.branch, "epoch": driver.head.epoch}
    prepare = {
        "parent": parent,
        "manifest": {"branch": driver.point.branch, "epoch": 2, "path": f"{driver.point.branch}/x", "sha256": SHA256},
        "counts": {},
        "terms": {},
    }
    bodies: dict[str, dict[str, Any] | None] = {
        "begin": {},
        "epochs": {
            "epoch": driver._next,
            "parent": None if driver.head is None else {"branch": driver.head.branch, "epoch": driver.head.epoch},
        },
        f"epochs/{driver._next}/prepare": prepare,
        f"epochs/{driver._next}/commit": {},
        f"epochs/{driver._next}/abort": {"failure": {"type": "x", "message": "forged"}},
        "heartbeat": {"phase": "running"},
        "report": {"number": 1},
        f"directives/{'0' * 32}": {"head": None, "failure": None},
        "finish": {"failure": {"type": "x", "message": "forged"}},
        f"epochs/{driver._next}": None,
        "directives?seconds=0": None,
        "calls?after=0": None,
        f"artifacts/{driver._artifact}": None,
    }
    return {
        rest: client.get(path_of(driver, rest)) if body is None else client.post(path_of(driver, rest), json=body)
        for rest, body in bodies.items()
    }


@pytest.mark.parametrize("over", ["finished", "replaced"])
def test_the_token_of_an_attempt_that_is_over_changes_nothing(plane: Plane, over: str) -> None:
    plane.application()
    driver = plane.driver()
    driver.epoch()
    if over == "finished":
        driver.catalog.finish(None)
    else:
        plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", LOST)
        plane.driver()
    with plane.as_bearer(driver.ticket.token) as client:
        answers = everything(driver, client)
        done = {rest for rest, answer in answers.items() if answer.is_success}
        # It goes on to read what it could read before. Until its end is seen it may say again that it has finished, as
        # the answer may have been lost, and what it has measured.
        reads = {"directives?seconds=0", "calls?after=0", f"artifacts/{driver._artifact}"}
        assert done - ({"finish", "report"} if over == "finished" else set()) == reads
        heard = [epoch["state"] for epoch in plane.get("/v1/applications/flights/epochs")["items"]]
    assert heard == ["committed"]
    assert "forged" not in plane.client.get("/v1/applications/flights/executions").text


@pytest.mark.parametrize(
    "path",
    [
        "{own}/../{other}/epochs/0000000001/manifest.json",
        "/etc/passwd",
        "../../admin.token",
        "{other}/epochs/0000000001/manifest.json",
        "{own}%2f..%2f{other}/manifest.json",
        "{own}\\..\\{other}",
        "{own}/./../{other}/manifest.json",
        "{own}//manifest.json",
        "{own}x/manifest.json",
        "",
    ],
)
def test_no_manifest_of_anywhere_else_is_prepared(plane: Plane, path: str) -> None:
    plane.application("flights")
    plane.application("trains")
    flights, trains = plane.driver("flights"), plane.driver("trains")
    trains.epoch()
    flights.catalog.open_epoch(1, None)
    own = flights.manifest(1)
    named = path.format(own=own.path.split("/")[0], other=trains.point.branch)
    with plane.as_bearer(flights.ticket.token) as client:
        body = {
            "parent": None,
            "manifest": {"branch": flights.point.branch, "epoch": 1, "path": named, "sha256": own.sha256},
            "counts": {},
            "terms": {},
        }
        answer = client.post(path_of(flights, "epochs/1/prepare"), json=body)
    assert answer.status_code == 422, answer.text
    flights.catalog.prepare_epoch(1, None, own, EpochCounts(), EpochTerms())  # it was not, and this one is


def test_no_epoch_of_another_branch_is_prepared_or_stood_on(plane: Plane) -> None:
    plane.application("flights")
    plane.application("trains")
    flights, trains = plane.driver("flights"), plane.driver("trains")
    trains.epoch()
    assert trains.head is not None
    with pytest.raises(EpochalError):
        flights.catalog.open_epoch(2, trains.head_key)
    flights.catalog.open_epoch(1, None)
    for manifest in (trains.head, ManifestReference(**{**trains.head.model_dump(), "branch": flights.point.branch})):
        with pytest.raises((InvalidInput, Conflict)):
            flights.catalog.prepare_epoch(1, None, manifest, EpochCounts(), EpochTerms())


@pytest.mark.parametrize(
    "tail",
    ["../../../../../v1/tokens", "..%2f..%2f..%2f..%2fv1%2ftokens", "%2e%2e/%2e%2e/attempts/2/begin", "begin%00"],
)
def test_no_path_leads_out_of_the_attempt(plane: Plane, tail: str) -> None:
    plane.application()
    driver = plane.driver()
    with plane.as_bearer(driver.ticket.token) as client:
        # Written by hand: clients would put the path in order before they send it.
        request = client.build_request("POST", "/", json={})
        request.url = request.url.copy_with(raw_path=path_of(driver, tail).encode())
        assert client.send(request).status_code in (401, 404, 405, 307, 400)


def test_a_fenced_driver_changes_nothing_that_is_reported(plane: Plane) -> None:
    plane.application()
    first = plane.driver()
    plane.control.ledger.attempt_ended(first.execution, first.attempt, "lost", LOST)
    second = plane.driver()
    second.epoch()
    with pytest.raises((Fenced, EpochalError)):
        first.catalog.finish(None)
    second.epoch()
    assert plane.get("/v1/applications/flights")["head"]["epoch"] == 2
