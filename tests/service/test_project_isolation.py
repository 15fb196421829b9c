"""Isolation of projects: no path, name, bundle or query node gives access to another project."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import select

from epochal.service.api.access import access_of
from epochal.service.api.fast_lookups import FastLookups
from epochal.service.app import create_app
from epochal.service.catalog.models import Application
from epochal.service.domain.permissions import Access
from epochal.service.domain.settings import Settings
from epochal.service.query_app import create_query_app
from epochal.wire.projects import OF_PROJECTS
from tests.kit.waiting import eventually
from tests.service.bundles import exported, with_state
from tests.service.lookups import DELAYS, StateDriver, route
from tests.service.projects import SECRET, Project, project

if TYPE_CHECKING:
    from tests.service.conftest import Plane


@pytest.fixture
def a(plane: Plane) -> Iterator[Project]:
    made = project(plane, "a")
    with made.client:
        yield made


@pytest.fixture
def b(plane: Plane) -> Iterator[Project]:
    made = project(plane, "b")
    with made.client:
        yield made


NAMES = (f"b.{SECRET}", SECRET, f"b%2E{SECRET}", f"a.b.{SECRET}", f"default.{SECRET}", f"b%2F{SECRET}")
BEGINNINGS = ("", "/projects/a", "/projects/b", "/projects/default", "/projects/a%2F..%2Fb", "/projects/a/../b")


@pytest.mark.parametrize(
    ("names", "beginnings"),
    [
        pytest.param(2, 2, marks=pytest.mark.alternating(3)),
        pytest.param(len(NAMES), len(BEGINNINGS), marks=pytest.mark.long),
    ],
)
def test_other_projects_are_unreachable_by_any_path(
    plane: Plane, a: Project, b: Project, names: int, beginnings: int
) -> None:
    """Request every route as callers without a role in ``b``, with names and ids of ``b`` in every parameter."""
    b.application(SECRET)
    driver = plane.driver(f"b.{SECRET}")
    driver.epochs(2)
    application = b.get(f"applications/{SECRET}")
    export = b.post(f"applications/{SECRET}/export", 202)
    upload = b.post("imports", 201, sha256=hashlib.sha256(SECRET.encode()).hexdigest(), bytes=10)
    webhook = b.post("webhooks", 201, url=f"https://example.com/{SECRET}", kinds=["epoch.committed"])
    token = b.post("tokens", 201, name=SECRET, role="viewer")
    ids = {
        "execution": [application["execution"]],
        "sha256": [application["artifact"]],
        "epoch": ["1", "2"],
        "snapshot": ["head", "2"],
        "id": [application["execution"], export["id"], upload["id"], webhook["id"], token["id"]],
        "project": ["b"],
    }
    with plane.control.database.reading() as session:
        internal = session.scalars(select(Application.id).where(Application.project == "b")).one()
    secrets = [SECRET, application["branch"], internal, *ids["execution"], webhook["id"], token["id"], upload["id"]]
    outsider = plane.as_bearer(plane.token("viewer", "outsider"))
    callers = {"admin of a": a.client, "viewer of default": outsider}
    calls = 0
    for method, path in routes():
        for url in ways(path, ids, NAMES[:names], BEGINNINGS[:beginnings]):
            for caller, client in callers.items():
                answer = client.request(method, url, timeout=8, **arguments_of(path))
                calls += 1
                where = f"{method} {url} as {caller}: {answer.status_code} {answer.text[:300]}"
                text = answer.text.replace(url, "")
                sent = f"{url} {arguments_of(path)}"
                leaked = [secret for secret in secrets if secret in text and secret not in sent]
                if path == "/v1/audit":
                    leaked = []  # the audit log contains the caller's own requests
                assert leaked == [], where
                if "{" in path.removeprefix("/v1/projects/{project}"):
                    assert answer.status_code in (403, 404, 409, 422) or harmless(method, path, answer), where
    outsider.close()
    assert calls > 500
    after = b.get(f"applications/{SECRET}")
    assert (after["revision"], after["state"]) == (application["revision"], application["state"])
    assert [item["id"] for item in b.get("webhooks")["items"]] == [webhook["id"]]
    assert SECRET in [item["name"] for item in b.get("tokens")["items"]]
    assert b.get(f"imports/{upload['id']}")["received"] == 0


def harmless(method: str, path: str, answer: httpx.Response) -> bool:
    """Deleting a missing artifact succeeds."""
    return method == "DELETE" and path.endswith("/artifacts/{sha256}") and answer.status_code == 204


def routes() -> Iterator[tuple[str, str]]:
    for found in iter_route_contexts(create_app(Settings()).routes):
        access = access_of(found.endpoint)
        if access in (None, Access.PUBLIC, Access.DRIVER, Access.POD) or not found.path.startswith("/v1/"):
            continue
        for method in sorted(found.methods or ()):
            yield method, str(found.path)


def ways(path: str, ids: dict[str, list[str]], names: Sequence[str], beginnings: Sequence[str]) -> Iterator[str]:
    """Paths that could reach resources of ``b``."""
    for beginning in beginnings if path.split("/")[2] in OF_PROJECTS else [""]:
        for name in names if "{name}" in path else [""]:
            for filled in combinations(path.replace("{name}", name), ids):
                if path == "/v1/events" and beginning in ("", "/projects/a", "/projects/default"):
                    continue  # an endless stream of the caller's own events
                yield "/v1" + beginning + filled.removeprefix("/v1")


def combinations(path: str, ids: dict[str, list[str]]) -> Iterator[str]:
    match = re.search(r"\{(\w+)(:path)?\}", path)
    if match is None:
        yield path
        return
    for value in ids.get(match[1], ["1"]):
        yield from combinations(path.replace(match[0], value, 1), ids)


def arguments_of(path: str) -> dict[str, Any]:
    """A valid body and query for the endpoint that name resources of ``b``."""
    if path.endswith(("/diff", "/diff/{table}")):
        return {"params": {"to": f"{SECRET}:1"}}
    if path == "/v1/operations":
        return {"params": {"application": SECRET}}
    if path.endswith("/fork"):
        return {"json": {"name": "copy"}}
    if path == "/v1/preflight":
        return {"json": {"application": SECRET}}
    if path.endswith("/content"):
        return {"params": {"offset": 0}, "content": b"x"}
    if path.endswith("/rescale"):
        return {"json": {"parallelism": 2}}
    if path.endswith("/versions"):
        return {"json": {"parameters": {}}}
    return {"json": {}}


def test_fast_lookups_check_the_role_in_the_project(
    plane: Plane, a: Project, b: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast_path_applications: list[bytes] = []
    found = FastLookups._found

    def recording(self: FastLookups, place: Any, *rest: Any, **more: Any) -> Any:
        fast_path_applications.append(place.application.encode())
        return found(self, place, *rest, **more)

    monkeypatch.setattr(FastLookups, "_found", recording)
    b.application("flights")
    driver = StateDriver(plane, "b.flights", tables=(DELAYS,))
    driver.epoch((DELAYS, [route("JFK", "LAX", 3, 1.0)]))
    key = "state/delays/keys/JFK,LAX"
    paths = [b.url(f"applications/flights/{key}"), f"/v1/applications/b.flights/{key}"]
    outsider = plane.as_bearer(plane.token("viewer", "outsider"))
    for path in paths:
        eventually(lambda path=path: b.client.get(path).status_code == 200)
        again = [b.client.get(path) for _ in range(3)]  # equal headers, from the cache from the second request on
        assert [answer.json()["value"]["flights"] for answer in again] == [3, 3, 3]
    assert set(fast_path_applications) == {b"b.flights"}
    fast_path_applications.clear()
    for path in [*paths, a.url(f"applications/b.flights/{key}"), a.url(f"applications/flights/{key}")]:
        for client in (a.client, outsider):
            for _ in range(3):
                assert client.get(path).status_code in (403, 404), path
    assert b"b.flights" not in fast_path_applications
    for path in (f"/v1/applications/flights/{key}", f"/v1/projects/default/applications/flights/{key}"):
        assert plane.client.get(path).status_code == 404
    outsider.close()


def test_query_nodes_check_the_role_in_the_project(plane: Plane, a: Project, b: Project) -> None:
    b.application("flights", start=False)
    transport = httpx.ASGITransport(create_query_app(plane.control))

    async def response_to(path: str, by: Project) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path, headers={"authorization": by.client.headers["authorization"]})

    for path in (b.url("applications/flights"), "/v1/applications/b.flights"):
        of_a, of_b = (asyncio.run(response_to(path, each)) for each in (a, b))
        assert (of_a.status_code, of_b.status_code) == (403, 200)
        assert (of_b.json()["name"], of_b.json()["project"]) == ("flights", "b")


def test_bundles_cannot_reference_other_projects(plane: Plane, a: Project, b: Project) -> None:
    b.application("flights")
    driver = StateDriver(plane, "b.flights", tables=(DELAYS,))
    driver.epoch((DELAYS, [route("JFK", "LAX", 3, 1.0)]))
    driver.epoch((DELAYS, [route("JFK", "SFO", 4, 1.0)]))
    operation = b.post("applications/flights/export", 202)["id"]
    b.wait(operation)
    bundle = b.client.get(b.url(f"applications/flights/exports/{operation}")).content
    body = {"sha256": hashlib.sha256(bundle).hexdigest(), "bytes": len(bundle)}
    for each in (a, b):
        upload = each.post("imports", 201, **body)["id"]
        part = each.client.put(each.url(f"imports/{upload}/content"), params={"offset": 0}, content=bundle)
        assert part.status_code == 200, part.text
        request = {"name": "copy", "parameters": {"out": f"/copy-{each.name}"}}
        each.wait(each.post(f"imports/{upload}/application", 202, **request)["id"])
    ours, theirs = (each.get("applications/copy") for each in (a, b))
    assert (ours["project"], ours["head"]["branch"].partition(".")[0]) == ("a", "a")
    assert (theirs["project"], theirs["head"]["branch"]) == ("b", driver.driver.point.branch)


def test_bundles_of_other_installations_are_imported_into_a_project(plane: Plane, a: Project, other: Plane) -> None:
    source = with_state(other)
    bundle = exported(other)
    upload = a.post("imports", 201, sha256=hashlib.sha256(bundle).hexdigest(), bytes=len(bundle))["id"]
    a.client.put(a.url(f"imports/{upload}/content"), params={"offset": 0}, content=bundle)
    plan = a.post(f"imports/{upload}/application", 200, parameters={"out": "/new"}, dry_run=True)
    assert plan["application"] == "flights"
    operation = a.post(f"imports/{upload}/application", 202, parameters={"out": "/new"})
    assert (operation["project"], operation["application"]) == ("a", "flights")
    a.wait(operation["id"])
    done = a.get("applications/flights")
    assert (done["project"], done["head"]["epoch"]) == ("a", 3)
    branch = done["head"]["branch"]
    assert branch.startswith("a.flights-") and branch != f"a.{source.driver.point.branch}"
    assert [item["filename"] for item in a.get("artifacts")["items"]] == ["flights.py"]
    assert plane.get("/v1/artifacts")["items"] == plane.get("/v1/operations")["items"] == []
