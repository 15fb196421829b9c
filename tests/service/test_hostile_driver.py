"""Limits of a driver's token, which authors' code can read."""

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
LOST = Failure(type="driver-lost", message="no heartbeat")


def path_of(driver: Driver, rest: str) -> str:
    return f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/{rest}"


def all_calls(driver: Driver, client: httpx.Client, beginnings: tuple[str, ...] = ("",)) -> dict[str, httpx.Response]:
    """Answers to every call of a driver whose path begins with one of ``beginnings``, with valid bodies."""
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
        f"directives/{'0' * 32}/progress": {"progress": "forged"},
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


def abandoned(plane: Plane, driver: Driver) -> None:
    plane.control.ledger.execution_ended(driver.execution, "failed", LOST)


ENDS: dict[str, Callable[[Plane, Driver], None]] = {
    "finished": lambda _, driver: driver.catalog.finish(None),
    "failed": lambda _, driver: driver.catalog.finish(LOST),
    "lost": lost,
    "replaced": replaced,
    "abandoned": abandoned,
}


@pytest.mark.parametrize("end", ENDS)
def test_the_token_of_an_ended_attempt_is_refused(plane: Plane, end: str) -> None:
    plane.application()
    driver = plane.driver()
    driver.epoch()
    with plane.as_bearer(driver.ticket.token) as client:
        before = all_calls(driver, client, ("directives?", "calls", "artifacts", "epochs/1"))
        assert {answer.status_code for answer in before.values()} == {200}  # the token is valid and cached
        ENDS[end](plane, driver)
        answers = all_calls(driver, client)
        # A repeated finish has no effect and succeeds, because its first answer may have been lost.
        accepted = {"finish": 204} if end in ("finished", "failed") else {}
        assert {rest: answer.status_code for rest, answer in answers.items()} == {
            rest: accepted.get(rest, 409) for rest in answers
        }
        refused = [answer.json()["type"] for answer in answers.values() if answer.status_code == 409]
        assert set(refused) == {"urn:epochal:problem:fenced"}
        states = [epoch["state"] for epoch in plane.get("/v1/applications/flights/epochs")["items"]]
    assert states == ["committed"]
    assert "forged" not in plane.client.get("/v1/applications/flights/executions").text


def test_the_table_of_calls_contains_the_whole_internal_api(plane: Plane) -> None:
    """Add new calls of the internal API to ``all_calls``."""
    plane.application()
    driver = plane.driver()
    driver.epoch()
    app = create_internal_app(plane.settings)
    defined = {
        (method, str(route.path))
        for route in iter_route_contexts(app.routes)
        for method in route.methods or ()
        if access_of(route.endpoint) is Access.DRIVER
    }
    with plane.as_bearer(driver.ticket.token) as client:
        sent = [answer.request for answer in all_calls(driver, client).values()]
    tried = {
        (request.method, str(route.path))
        for request in sent
        for route in iter_route_contexts(app.routes)
        if route.matches({"type": "http", "method": request.method, "path": request.url.path})[0] is Match.FULL
    }
    assert tried == defined


LISTS = ("/v1/applications", "/v1/executions", "/v1/tokens", "/v1/projects", "/v1/webhooks", "/v1/artifacts")


def state_of_installation(plane: Plane) -> dict[str, Any]:
    """All lists and epochs, as an admin reads them."""
    found = {path: answer.json() for path in LISTS if (answer := plane.client.get(path)).status_code == 200}
    epochs = {name: plane.get(f"/v1/applications/{name}/epochs")["items"] for name in ("flights", "trains")}
    return {**found, **epochs}


def test_a_drivers_token_is_refused_by_all_other_paths(plane: Plane) -> None:
    """Tries every route of both apps with the token of a running driver."""
    plane.application("flights")
    plane.application("trains")
    driver, other = plane.driver("flights"), plane.driver("trains")
    driver.epoch()
    other.epoch()
    values = {"execution": other.execution, "attempt": str(other.attempt), "name": "flights", "project": "default"}
    values |= {"epoch": "1", "table": "counts", "sha256": other._artifact, "artifact": other._artifact}

    def filled(path: str) -> str:
        return re.sub(r"\{(\w+)(:path)?\}", lambda found: values.get(found[1], "flights"), path)

    before = state_of_installation(plane)
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
                    # The gate answers 404 to a valid token of another execution.
                    is_hidden = access is Access.DRIVER and answer.status_code == 404
                    if is_hidden:
                        assert answer.json()["type"] != "urn:epochal:problem:no-such-path", route.path
                    elif answer.status_code != 401:
                        opened[method, str(route.path)] = (answer.status_code, access)
        forged = all_calls(other, client)
        # Foreign ids within its own attempt, and another attempt of its own execution.
        foreign = [
            client.get(path_of(driver, f"artifacts/{'0' * 64}")),
            client.post(path_of(driver, f"epochs/{other._next + 40}/commit"), json={}),
            client.post(f"/internal/v1/executions/{driver.execution}/attempts/2/heartbeat", json={"phase": "running"}),
            client.get(f"/internal/v1/executions/{other.execution}/attempts/{driver.attempt}/epochs/1"),
        ]
    assert tried > 80
    public = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json"), ("HEAD", "/openapi.json")}
    public |= {("GET", f"/v1/session/{path}") for path in ("methods", "login", "callback")}
    public |= {(method, path) for method in ("GET", "HEAD") for path in ("/", "/console", "/console/{path:path}")}
    assert not set(opened) - public, {key: opened[key] for key in set(opened) - public}
    assert {answer.status_code for answer in (*forged.values(), *foreign[2:])} <= {401, 404}, forged
    assert all(answer.status_code in (401, 404, 409, 422) for answer in foreign[:2])
    assert state_of_installation(plane) == before
    driver.epoch()
    other.epoch()


def test_a_long_poll_is_refused_when_its_attempt_ends(plane: Plane) -> None:
    """A directive that arrives during the poll must not reach a driver that has ended."""
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
def test_a_manifest_outside_the_branch_is_not_prepared(plane: Plane, path: str) -> None:
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
    flights.catalog.prepare_epoch(
        1, None, own, EpochCounts(), EpochTerms()
    )  # the epoch is still open for its own manifest


def test_an_epoch_of_another_branch_is_neither_parent_nor_prepared(plane: Plane) -> None:
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
def test_crafted_paths_do_not_leave_the_attempt(plane: Plane, tail: str) -> None:
    plane.application()
    driver = plane.driver()
    with plane.as_bearer(driver.ticket.token) as client:
        # Clients normalise paths, so set the raw path.
        request = client.build_request("POST", "/", json={})
        request.url = request.url.copy_with(raw_path=path_of(driver, tail).encode())
        assert client.send(request).status_code in (401, 404, 405, 307, 400)


def test_a_fenced_driver_does_not_affect_its_successor(plane: Plane) -> None:
    plane.application()
    first = plane.driver()
    plane.control.ledger.attempt_ended(first.execution, first.attempt, "lost", LOST)
    second = plane.driver()
    second.epoch()
    with pytest.raises((Fenced, EpochalError)):
        first.catalog.finish(None)
    second.epoch()
    assert plane.get("/v1/applications/flights")["head"]["epoch"] == 2
