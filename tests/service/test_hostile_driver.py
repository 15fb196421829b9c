"""A driver runs an author's code, which has its token: what that opens, and for how long."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from starlette.routing import Match

from epochal.contracts.catalog import EpochCounts, EpochTerms, Failure, ManifestReference
from epochal.errors import Conflict, EpochalError, Fenced, InvalidInput
from epochal.service.api.access import access_of
from epochal.service.app import create_app
from epochal.service.domain.permissions import Access
from epochal.service.internal_app import create_internal_app
from tests.service.conftest import Driver, Plane

SHA256 = "0" * 64
LOST = Failure(type="driver-lost", message="not heard")


def path_of(driver: Driver, rest: str) -> str:
    return f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/{rest}"


def everything(driver: Driver, client: httpx.Client, beginnings: tuple[str, ...] = ("",)) -> dict[str, httpx.Response]:
    """Every call that a driver can make whose path begins so, with bodies that are in order."""
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
        "epochs/1": None,
        f"epochs/{driver._next}": None,
        "directives?seconds=0": None,
        "calls?after=0": None,
        f"artifacts/{driver._artifact}": None,
    }
    return {
        rest: client.get(path_of(driver, rest)) if body is None else client.post(path_of(driver, rest), json=body)
        for rest, body in bodies.items()
        if rest.startswith(beginnings)
    }


def lost(plane: Plane, driver: Driver) -> None:
    plane.control.ledger.attempt_ended(driver.execution, driver.attempt, "lost", LOST)


def replaced(plane: Plane, driver: Driver) -> None:
    lost(plane, driver)
    plane.driver()


def given_up(plane: Plane, driver: Driver) -> None:
    plane.control.ledger.execution_ended(driver.execution, "failed", LOST)


ENDS: dict[str, Callable[[Plane, Driver], None]] = {
    "finished": lambda _, driver: driver.catalog.finish(None),
    "failed": lambda _, driver: driver.catalog.finish(LOST),
    "lost": lost,
    "replaced": replaced,
    "given up": given_up,
}


@pytest.mark.parametrize("over", ENDS)
def test_the_token_of_an_attempt_that_is_over_is_worth_nothing(plane: Plane, over: str) -> None:
    plane.application()
    driver = plane.driver()
    driver.epoch()
    with plane.as_bearer(driver.ticket.token) as client:
        before = everything(driver, client, ("directives?", "calls", "artifacts", "epochs/1"))
        assert {answer.status_code for answer in before.values()} == {200}  # the token is known, and remembered
        ENDS[over](plane, driver)
        answers = everything(driver, client)
        # The answer may have been lost: it may say again how it has ended, for which nothing happens.
        again = {"finish": 204} if over in ("finished", "failed") else {}
        assert {rest: answer.status_code for rest, answer in answers.items()} == {
            rest: again.get(rest, 409) for rest in answers
        }
        refused = [answer.json()["type"] for answer in answers.values() if answer.status_code == 409]
        assert set(refused) == {"urn:epochal:problem:fenced"}
        heard = [epoch["state"] for epoch in plane.get("/v1/applications/flights/epochs")["items"]]
    assert heard == ["committed"]
    assert "forged" not in plane.client.get("/v1/applications/flights/executions").text


def test_everything_that_a_driver_can_call_is_tried(plane: Plane) -> None:
    """What is added to the internal API comes into the test above, too."""
    plane.application()
    driver = plane.driver()
    driver.epoch()
    app = create_internal_app(plane.settings)
    wanted = {
        (method, str(route.path))
        for route in iter_route_contexts(app.routes)
        for method in route.methods or ()
        if access_of(route.endpoint) is Access.DRIVER
    }
    with plane.as_bearer(driver.ticket.token) as client:
        asked = [answer.request for answer in everything(driver, client).values()]
    tried = {
        (request.method, str(route.path))
        for request in asked
        for route in iter_route_contexts(app.routes)
        if route.matches({"type": "http", "method": request.method, "path": request.url.path})[0] is Match.FULL
    }
    assert tried == wanted


STATE_OF_ALL = ("/v1/applications", "/v1/executions", "/v1/tokens", "/v1/projects", "/v1/webhooks", "/v1/artifacts")


def everything_there_is(plane: Plane) -> dict[str, Any]:
    """Answers to an admin."""
    found = {path: answer.json() for path in STATE_OF_ALL if (answer := plane.client.get(path)).status_code == 200}
    epochs = {name: plane.get(f"/v1/applications/{name}/epochs")["items"] for name in ("flights", "trains")}
    return {**found, **epochs}


def test_a_live_drivers_token_opens_no_other_path_of_either_port(plane: Plane) -> None:
    """Every route of both apps, new ones included, with the token of a driver that is running."""
    plane.application("flights")
    plane.application("trains")
    driver, other = plane.driver("flights"), plane.driver("trains")
    driver.epoch()
    other.epoch()
    values = {"execution": other.execution, "attempt": str(other.attempt), "name": "flights", "project": "default"}
    values |= {"epoch": "1", "table": "counts", "sha256": other._artifact, "artifact": other._artifact}

    def filled(path: str) -> str:
        return re.sub(r"\{(\w+)(:path)?\}", lambda found: values.get(found[1], "flights"), path)

    before = everything_there_is(plane)
    opened, tried = {}, 0
    apps = (create_app(plane.settings), create_internal_app(plane.settings))
    with plane.as_bearer(driver.ticket.token) as client:
        for app in apps:
            for route in iter_route_contexts(app.routes):
                access = None if route.path == "/openapi.json" else access_of(route.endpoint)
                for method in sorted(route.methods or ()):
                    body = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
                    answer = client.request(method, filled(str(route.path)), **body)
                    tried += 1
                    # 404 of the gate: the token is known, and the execution is not its own.
                    is_hidden = access is Access.DRIVER and answer.status_code == 404
                    if is_hidden:
                        assert answer.json()["type"] != "urn:epochal:problem:no-such-path", route.path
                    elif answer.status_code != 401:
                        opened[method, str(route.path)] = (answer.status_code, access)
        forged = everything(other, client)
        # Its own attempt's path, with a foreign id behind it, and its own execution with another attempt.
        foreign = [
            client.get(path_of(driver, f"artifacts/{'0' * 64}")),
            client.post(path_of(driver, f"epochs/{other._next + 40}/commit"), json={}),
            client.post(f"/internal/v1/executions/{driver.execution}/attempts/2/heartbeat", json={"phase": "running"}),
            client.get(f"/internal/v1/executions/{other.execution}/attempts/{driver.attempt}/epochs/1"),
        ]
    assert tried > 80
    public = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json"), ("HEAD", "/openapi.json")}
    assert not set(opened) - public, {key: opened[key] for key in set(opened) - public}
    assert {answer.status_code for answer in (*forged.values(), *foreign[2:])} <= {401, 404}, forged
    assert all(answer.status_code in (401, 404, 409, 422) for answer in foreign[:2])
    assert everything_there_is(plane) == before
    driver.epoch()
    other.epoch()


def test_who_waits_while_the_attempt_ends_learns_nothing(plane: Plane) -> None:
    """Questions are held for a while: what comes then is not for a driver that is over by then."""
    plane.application()
    driver = plane.driver()
    driver.running()
    with plane.as_bearer(driver.ticket.token) as client, ThreadPoolExecutor(2) as pool:
        held = [
            pool.submit(client.get, path_of(driver, question))
            for question in ("directives?after=&seconds=1.5", "directives?seconds=1.5")
        ]
        lost(plane, driver)
        plane.post("/v1/applications/flights/stop")
        assert [answer.result().status_code for answer in held] == [409, 409]


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
