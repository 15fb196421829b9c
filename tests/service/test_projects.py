"""Projects: what belongs to one is seen, changed and used by those only who have a role there."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import select
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.errors import Conflict, OptionError, QuotaExceeded
from epochal.service.api.access import access_of
from epochal.service.api.fast_lookups import FastLookups
from epochal.service.app import create_app
from epochal.service.catalog.models import Application, Token, WebhookDelivery
from epochal.service.domain.permissions import Access
from epochal.service.domain.settings import Settings
from epochal.service.query_app import create_query_app
from epochal.wire.projects import OF_PROJECTS
from tests.kit.waiting import eventually
from tests.service.bundles import exported, with_state
from tests.service.lookups import DELAYS, StateDriver, route

if TYPE_CHECKING:
    from tests.service.conftest import Plane

SECRET = "of-b-alone"
"""Stands in every name, parameter and file of the project ``b``."""


@dataclass(frozen=True)
class Project:
    """One project, by HTTP as its own admin."""

    plane: Plane
    name: str
    client: httpx.Client

    def url(self, path: str) -> str:
        return f"/v1/projects/{self.name}/{path}"

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(self.url(path), params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, expect: int, **body: Any) -> Any:
        answer = self.client.post(self.url(path), json=body)
        assert answer.status_code == expect, answer.text
        return answer.json()

    def artifact(self, content: str) -> str:
        text = "# " + json.dumps({"sinks": {"out": "files:{out}"}, "content": content})
        answer = self.client.post(self.url("artifacts"), params={"filename": "code.py"}, content=text.encode())
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["sha256"])

    def application(self, name: str, expect: int = 201, **more: Any) -> Any:
        body = {"name": name, "parameters": {"out": f"/data/{self.name}/{name}"}, **more}
        return self.post("applications", expect, **({"artifact": self.artifact(self.name)} | body))

    def wait(self, operation: str) -> None:
        """Until it has succeeded."""
        eventually(lambda: self.get(f"operations/{operation}")["state"] != "running")
        found = self.get(f"operations/{operation}")
        assert found["state"] == "succeeded", found

    def token(self, role: str, name: str) -> str:
        return str(self.post("tokens", 201, name=name, role=role)["token"])


def project(plane: Plane, name: str, **quotas: int) -> Project:
    plane.post("/v1/projects", 201, name=name, quotas=quotas)
    answer = plane.client.post(f"/v1/projects/{name}/tokens", json={"name": "its-admin", "role": "admin"})
    assert answer.status_code == 201, answer.text
    return Project(plane, name, plane.as_bearer(answer.json()["token"]))


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


def test_names_are_of_their_project(plane: Plane, a: Project, b: Project) -> None:
    plane.application("flights")
    for each in (a, b):
        made = each.application("flights")
        assert (made["name"], made["project"]) == ("flights", each.name)
        assert made["branch"].startswith(f"{each.name}.flights-")
        assert [item["project"] for item in each.get("applications")["items"]] == [each.name]
    assert [item["project"] for item in plane.get("/v1/applications")["items"]] == ["default"]
    assert plane.get("/v1/projects/default/applications/flights") == plane.get("/v1/applications/flights")
    assert plane.get("/v1/applications/a.flights") == a.get("applications/flights")


def test_an_application_of_a_project_lives_as_any_other(plane: Plane, a: Project) -> None:
    a.application("flights")
    driver = plane.driver("a.flights")
    driver.epochs(3)
    assert driver.point.application == "a.flights"
    shown = a.get("applications/flights")
    assert shown["head"]["epoch"] == 3
    assert {node["application"] for node in a.get("applications/flights/lineage")["nodes"]} == {"flights"}
    snapshot = a.get("applications/flights/snapshots/head")
    assert (snapshot["application"], snapshot["reference"]["branch"]) == ("flights", shown["branch"])

    fork = a.post("applications/flights/fork", 201, name="again", parameters={"out": "/elsewhere"}, start=False)
    assert (fork["project"], fork["name"], fork["parent"]["application"]) == ("a", "again", "flights")
    same = a.get("applications/again/snapshots/head/diff", to="flights:3")
    assert same["code"] == "same"
    a.post("applications/flights/stop", 202)
    driver.stop()
    assert a.get("applications/flights")["state"] == "stopped"
    kinds = {(item["kind"], item["application"], item["project"]) for item in a.get("operations")["items"]}
    assert kinds == {("start", "flights", "a"), ("stop", "flights", "a")}
    assert plane.get("/v1/operations")["items"] == []
    assert len(a.get("operations", application="flights")["items"]) == 2


def test_names_in_bodies_and_queries_are_of_the_project_of_the_path(plane: Plane, a: Project, b: Project) -> None:
    """However another project's application is written, it is not there."""
    b.application("flights")
    plane.driver("b.flights").epochs(2)
    a.application("orders")
    plane.driver("a.orders").epochs(1)
    for name in ("flights", "b.flights", "b/flights", "default.flights"):
        answers = [
            a.client.post(a.url("preflight"), json={"application": name}),
            a.client.get(a.url("operations"), params={"application": name}),
            a.client.get(a.url("applications/orders/snapshots/head/diff"), params={"to": f"{name}:1"}),
            a.client.get(a.url(f"applications/{name}")),
            a.client.get(a.url(f"applications/{name}/lineage")),
        ]
        for answer in answers:
            assert answer.status_code in (403, 404, 422), (name, answer.url, answer.text)
    for name in ("b.flights", "default.x", "B"):
        assert a.client.post(a.url("applications"), json={"name": name, "artifact": "0" * 64}).status_code == 422


def test_code_is_used_where_it_was_uploaded(plane: Plane, a: Project, b: Project) -> None:
    sha256 = b.artifact(SECRET)
    assert a.client.get(a.url(f"artifacts/{sha256}")).status_code == 404
    assert plane.client.get(f"/v1/artifacts/{sha256}").status_code == 404
    assert a.get("artifacts")["items"] == []
    refused = a.application("stolen", 422, artifact=sha256)
    assert refused["type"] == "urn:epochal:problem:invalid-artifact"
    mine = a.application("mine", start=False)
    answer = a.client.post(a.url("applications/mine/versions"), json={"artifact": sha256, "parameters": {}})
    assert answer.json()["type"] == "urn:epochal:problem:invalid-artifact"
    answer = a.client.post(a.url("preflight"), json={"application": "mine", "artifact": sha256})
    assert answer.json()["type"] == "urn:epochal:problem:invalid-artifact"

    assert a.client.delete(a.url(f"artifacts/{sha256}")).status_code == 204
    assert b.get(f"artifacts/{sha256}")["sha256"] == sha256
    # Who has the bytes may use them; that others have them already is not said.
    text = "# " + json.dumps({"sinks": {"out": "files:{out}"}, "content": SECRET})
    again = a.client.post(a.url("artifacts"), params={"filename": "own.py"}, content=text.encode())
    assert (again.status_code, again.json()["filename"]) == (201, "own.py")
    assert a.application("own", artifact=sha256, start=False)["artifact"] == sha256 != mine["artifact"]
    assert b.client.delete(b.url(f"artifacts/{sha256}")).status_code == 204
    assert a.get(f"artifacts/{sha256}")["filename"] == "own.py"
    refused = a.client.delete(a.url(f"artifacts/{sha256}"))
    assert (refused.status_code, "version 1 of 'own'" in refused.text) == (409, True)


def test_tokens_are_of_one_project(plane: Plane, a: Project, b: Project) -> None:
    made = a.post("tokens", 201, name="ci", role="author")
    assert (made["name"], made["project"], made["roles"]) == ("ci", "a", {"a": "author"})
    b.post("tokens", 201, name="ci", role="viewer")
    assert a.post("tokens", 409, name="ci", role="viewer")["type"] == "urn:epochal:problem:name-taken"
    assert [token["name"] for token in a.get("tokens")["items"]] == ["ci", "its-admin"]
    assert {token["project"] for token in plane.get("/v1/tokens")["items"]} == {"default"}
    for attempt in (
        b.client.delete(b.url(f"tokens/{made['id']}")),
        b.client.post(b.url(f"tokens/{made['id']}/rotate"), json={}),
        plane.client.delete(f"/v1/tokens/{made['id']}"),
    ):
        assert attempt.status_code == 404
    with plane.as_bearer(made["token"]) as client:
        assert client.get(a.url("applications")).status_code == 200
        assert client.get(a.url("tokens")).status_code == 403
        assert client.post(a.url("tokens"), json={"name": "more", "role": "admin"}).status_code == 403
        assert client.get(b.url("applications")).status_code == 403
        assert client.get("/v1/applications").status_code == 403
    new = a.post(f"tokens/{made['id']}/rotate", 201)
    assert (new["name"], new["roles"]) == ("ci", {"a": "author"})
    with plane.control.database.reading() as session:
        stored = session.get_one(Token, new["id"])
        assert stored.name == "a.ci"


def test_an_admin_of_a_project_is_none_of_another_nor_of_the_installation(plane: Plane, a: Project, b: Project) -> None:
    calls = [("POST", ""), ("GET", "/b"), ("PUT", "/b"), ("DELETE", "/b"), ("PUT", "/a"), ("DELETE", "/a")]
    for method, path in calls:
        body = {"quotas": {}} if path else {"name": "mine"}
        answer = a.client.request(method, f"/v1/projects{path}", json=body)
        assert answer.status_code == 403, (method, path, answer.text)
    assert [item["name"] for item in a.client.get("/v1/projects").json()["items"]] == ["a"]
    assert [item["name"] for item in plane.get("/v1/projects")["items"]] == ["a", "b", "default"]
    for path in ("/v1/nodes", "/v1/tokens", "/v1/audit", "/v1/artifacts", "/v1/projects/none/applications"):
        assert a.client.get(path).status_code == 403, path
    assert plane.client.get("/v1/projects/none/applications").status_code == 404
    assert plane.client.get("/v1/projects/None/applications").status_code == 404


def test_a_project_is_deleted_when_it_is_empty_and_its_name_is_gone(plane: Plane, a: Project) -> None:
    a.application("flights", start=False)
    refused = plane.client.delete("/v1/projects/a")
    assert (refused.status_code, "'a.flights'" in refused.json()["detail"]) == (409, True)
    assert a.client.delete(a.url("applications/flights")).status_code == 204
    a.post("webhooks", 201, url="https://example.com/hook", kinds=["epoch.committed"])
    assert plane.client.delete("/v1/projects/a").status_code == 204
    assert a.client.get(a.url("applications")).status_code == 401
    for path in ("/v1/projects/a", "/v1/projects/a/applications", "/v1/projects/a/audit"):
        assert plane.client.get(path).status_code == 404
    assert plane.client.post("/v1/projects/a/artifacts?filename=x.py", content=b"# {}").status_code == 404
    assert plane.client.post("/v1/projects/a/tokens", json={"name": "x", "role": "admin"}).status_code == 404
    assert plane.client.post("/v1/projects", json={"name": "a"}).json()["type"] == "urn:epochal:problem:name-taken"
    assert plane.client.delete("/v1/projects/default").status_code == 409


def test_what_was_done_is_in_the_audit_log_of_its_project(plane: Plane, a: Project, b: Project) -> None:
    a.application("flights", start=False)
    assert b.client.post(a.url("applications/flights/start")).status_code == 403
    log = [(entry["target"], entry["token"], entry["outcome"]) for entry in a.get("audit")["items"]]
    assert ("/v1/projects/a/applications", "a.its-admin", 201) in log
    assert ("/v1/projects/a/applications/flights/start", "b.its-admin", 403) in log
    assert "flights" not in str(b.get("audit"))
    assert "flights" not in str(plane.get("/v1/audit"))


def test_a_place_is_taken_whoever_has_it_and_its_owner_is_not_named(plane: Plane, a: Project, b: Project) -> None:
    b.application(SECRET, parameters={"out": "/shared"})
    refused = a.application("mine", 422, parameters={"out": "/shared"})
    assert refused["type"] == "urn:epochal:problem:shared-sink-targets"
    assert SECRET not in refused["detail"]
    assert "another project" in refused["detail"]


def test_a_name_and_its_project_are_not_too_long_together(plane: Plane, a: Project) -> None:
    a.application("x" * 60, start=False)
    refused = a.application("x" * 61, 422)
    assert (refused["type"], "at most 60" in refused["detail"]) == ("urn:epochal:problem:invalid-input", True)


def test_quotas_bound_what_a_project_has(plane: Plane) -> None:
    with project(plane, "small", applications=2, running=1, subtasks=4).client as client:
        small = Project(plane, "small", client)
        small.application("first", configuration={"parallelism": 4})
        shown = small.client.get("/v1/projects/small").json()
        assert shown["use"] == {"applications": 1, "running": 1, "subtasks": 4}
        assert shown["quotas"] == {"applications": 2, "running": 1, "subtasks": 4}
        refused = small.application("second", 409)
        assert refused["type"] == "urn:epochal:problem:quota-exceeded"
        assert refused["detail"].startswith("The project 'small' may have 1 concurrent executions, and would have 2.")
        assert small.get("applications")["items"][-1]["name"] == "first"
        small.application("second", start=False)
        for call in (
            (
                "applications",
                {"name": "third", "artifact": small.artifact("x"), "start": False, "parameters": {"out": "/y"}},
            ),
            ("applications/second/start", {}),
            ("applications/second/restart", {}),
        ):
            assert small.post(call[0], 409, **call[1])["type"] == "urn:epochal:problem:quota-exceeded", call
        driver = plane.driver("small.first")
        driver.epochs(1)
        driver.running()
        for call in (
            ("applications/first/rescale", {"parallelism": 8}),
            ("applications/first/versions", {"parameters": {"out": "/x"}, "configuration": {"parallelism": 8}}),
        ):
            assert small.post(call[0], 409, **call[1])["type"] == "urn:epochal:problem:quota-exceeded", call
        fork = small.post("applications/first/fork", 409, name="third", parameters={"out": "/x"}, start=False)
        assert fork["type"] == "urn:epochal:problem:quota-exceeded"
        small.post("applications/first/rescale", 202, parallelism=2)

        changed = plane.client.put("/v1/projects/small", json={"quotas": {"running": 5}}).json()
        assert changed["quotas"] == {"applications": None, "running": 5, "subtasks": None}
        small.application("third", configuration={"parallelism": 100})


def test_the_default_project_can_have_quotas(plane: Plane) -> None:
    plane.application()
    assert plane.get("/v1/projects/default")["created_at"] is None
    answer = plane.client.put("/v1/projects/default", json={"quotas": {"applications": 1}})
    assert answer.json()["use"]["applications"] == 1
    body = {"name": "second", "artifact": plane.artifact(), "parameters": {"out": "/2"}}
    assert plane.client.post("/v1/applications", json=body).json()["type"] == "urn:epochal:problem:quota-exceeded"


def test_webhooks_hear_of_their_project_alone(plane: Plane, a: Project, b: Project) -> None:
    hooks = {
        each.name: each.post("webhooks", 201, url="https://example.com/hook", kinds=["epoch.committed"])["id"]
        for each in (a, b)
    }
    b.application("flights")
    plane.driver("b.flights").epochs(1)
    with plane.control.database.reading() as session:
        waiting = session.scalars(select(WebhookDelivery)).all()
    assert [each.webhook for each in waiting] == [hooks["b"]]
    body = json.loads(waiting[0].body)
    assert (body["application"], body["project"]) == ("flights", "b")
    assert a.client.get(a.url(f"webhooks/{hooks['b']}")).status_code == 404
    assert a.client.delete(a.url(f"webhooks/{hooks['b']}")).status_code == 404
    assert [item["id"] for item in a.get("webhooks")["items"]] == [hooks["a"]]


def first_events(client: httpx.Client, path: str, count: int, last: str) -> list[tuple[str, Any]]:
    """Ids and data of so many events after ``last``."""
    found: list[tuple[str, Any]] = []
    id = ""
    with client.stream("GET", path, headers={"Last-Event-ID": last}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("id: "):
                id = line.removeprefix("id: ")
            if line.startswith("data: "):
                found.append((id, json.loads(line.removeprefix("data: "))))
                if len(found) == count:
                    break
    return found


def test_events_are_of_their_project(plane: Plane, a: Project, b: Project) -> None:
    a.application("flights")
    b.application(SECRET)
    plane.driver(f"b.{SECRET}").epochs(2)
    plane.driver("a.flights").epochs(2)
    events = first_events(a.client, a.url("events"), 5, "flights/0")
    assert all(id.startswith("flights/") and data["project"] == "a" for id, data in events), events
    assert a.client.get(a.url("events"), headers={"Last-Event-ID": f"{SECRET}/1"}).status_code == 410
    one = first_events(a.client, a.url("applications/flights/events"), 2, "0")
    assert [data["application"] for _, data in one] == ["flights", "flights"]


NAMES = (f"b.{SECRET}", SECRET, f"b%2E{SECRET}", f"a.b.{SECRET}", f"default.{SECRET}", f"b%2F{SECRET}")
BEGINNINGS = ("", "/projects/a", "/projects/b", "/projects/default", "/projects/a%2F..%2Fb", "/projects/a/../b")


@pytest.mark.parametrize(
    ("names", "beginnings"),
    [
        pytest.param(2, 2, marks=pytest.mark.by_turns(3)),
        pytest.param(len(NAMES), len(BEGINNINGS), marks=pytest.mark.long),
    ],
)
def test_nothing_of_another_project_is_reached(
    plane: Plane, a: Project, b: Project, names: int, beginnings: int
) -> None:
    """Every route, as everybody who has no role in ``b``, with what is in ``b`` in every place that a caller fills."""
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
            for who, client in callers.items():
                answer = client.request(method, url, timeout=8, **sent(path))
                calls += 1
                where = f"{method} {url} as {who}: {answer.status_code} {answer.text[:300]}"
                said = answer.text.replace(url, "")
                told = [secret for secret in secrets if secret in said and secret not in f"{url} {sent(path)}"]
                if path == "/v1/audit":
                    told = []  # it has what they have asked for here
                assert told == [], where
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
    """To delete an artifact that is not there is done already."""
    return method == "DELETE" and path.endswith("/artifacts/{sha256}") and answer.status_code == 204


def routes() -> Iterator[tuple[str, str]]:
    for found in iter_route_contexts(create_app(Settings()).routes):
        access = access_of(found.endpoint)
        if access in (None, Access.PUBLIC, Access.DRIVER, Access.POD) or not found.path.startswith("/v1/"):
            continue
        for method in sorted(found.methods or ()):
            yield method, str(found.path)


def ways(path: str, ids: dict[str, list[str]], names: Sequence[str], beginnings: Sequence[str]) -> Iterator[str]:
    """Paths by which somebody could try to reach what is in ``b``."""
    for beginning in beginnings if path.split("/")[2] in OF_PROJECTS else [""]:
        for name in names if "{name}" in path else [""]:
            for filled in combinations(path.replace("{name}", name), ids):
                if path == "/v1/events" and beginning in ("", "/projects/a", "/projects/default"):
                    continue  # a stream without end, of what is one's own
                yield "/v1" + beginning + filled.removeprefix("/v1")


def combinations(path: str, ids: dict[str, list[str]]) -> Iterator[str]:
    match = re.search(r"\{(\w+)(:path)?\}", path)
    if match is None:
        yield path
        return
    for value in ids.get(match[1], ["1"]):
        yield from combinations(path.replace(match[0], value, 1), ids)


def sent(path: str) -> dict[str, Any]:
    """A body and a query that the endpoint takes, naming what is in ``b``."""
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


def test_the_short_way_asks_for_the_role_in_the_project(
    plane: Plane, a: Project, b: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    short: list[bytes] = []
    found = FastLookups._found

    def noting(self: FastLookups, place: Any, *rest: Any, **more: Any) -> Any:
        short.append(place.application.encode())
        return found(self, place, *rest, **more)

    monkeypatch.setattr(FastLookups, "_found", noting)
    b.application("flights")
    driver = StateDriver(plane, "b.flights", tables=(DELAYS,))
    driver.epoch((DELAYS, [route("JFK", "LAX", 3, 1.0)]))
    key = "state/delays/keys/JFK,LAX"
    paths = [b.url(f"applications/flights/{key}"), f"/v1/applications/b.flights/{key}"]
    outsider = plane.as_bearer(plane.token("viewer", "outsider"))
    for path in paths:
        eventually(lambda path=path: b.client.get(path).status_code == 200)
        again = [b.client.get(path) for _ in range(3)]  # the same head, from the second on without being parsed
        assert [answer.json()["value"]["flights"] for answer in again] == [3, 3, 3]
    assert set(short) == {b"b.flights"}
    short.clear()
    for path in [*paths, a.url(f"applications/b.flights/{key}"), a.url(f"applications/flights/{key}")]:
        for client in (a.client, outsider):
            for _ in range(3):
                assert client.get(path).status_code in (403, 404), path
    assert b"b.flights" not in short
    for path in (f"/v1/applications/flights/{key}", f"/v1/projects/default/applications/flights/{key}"):
        assert plane.client.get(path).status_code == 404
    outsider.close()


def test_a_query_node_asks_for_the_role_in_the_project(plane: Plane, a: Project, b: Project) -> None:
    b.application("flights", start=False)
    transport = httpx.ASGITransport(create_query_app(plane.control))

    async def asked(path: str, by: Project) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path, headers={"authorization": by.client.headers["authorization"]})

    for path in (b.url("applications/flights"), "/v1/applications/b.flights"):
        of_a, of_b = (asyncio.run(asked(path, each)) for each in (a, b))
        assert (of_a.status_code, of_b.status_code) == (403, 200)
        assert (of_b.json()["name"], of_b.json()["project"]) == ("flights", "b")


def test_a_bundle_stands_on_nothing_of_another_project(plane: Plane, a: Project, b: Project) -> None:
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


def test_a_bundle_of_elsewhere_is_imported_into_a_project(plane: Plane, a: Project, other: Plane) -> None:
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


def test_of_callers_at_the_same_time_one_gets_the_last_place(plane: Plane) -> None:
    with project(plane, "small", applications=3).client as client:
        small = Project(plane, "small", client)
        sha256 = small.artifact("code")

        def create(number: int) -> int:
            body = {"name": f"n{number}", "artifact": sha256, "parameters": {"out": f"/{number}"}, "start": False}
            return client.post(small.url("applications"), json=body).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = sorted(pool.map(create, range(8)))
    assert statuses == [201] * 3 + [409] * 5


def test_a_client_and_its_project(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    token = str(plane.client.headers["authorization"]).removeprefix("Bearer ")
    with Client(plane.settings.url, token) as client:
        made = client.projects.create("pricing", {"applications": 1})
        assert (made.quotas.applications, made.use.applications) == (1, 0)
    with Client(plane.settings.url, token, project="pricing") as client:
        source = plane.settings.data / "orders.py"
        source.write_text('# {"sinks": {"out": "files:{out}"}}')
        artifact = client.artifacts.upload(source)
        created = client.applications.create("orders", artifact.sha256, parameters={"out": "/o"}, start=False)
        assert (created.name, created.project) == ("orders", "pricing")
        assert [each.name for each in client.applications.list()] == ["orders"]
        assert client.tokens.create("ci", role="author").roles == {"pricing": "author"}
        with pytest.raises(QuotaExceeded):
            client.applications.create("second", artifact.sha256, parameters={"out": "/2"}, start=False)
        assert client.projects.set("pricing", {"running": 2}).quotas.applications is None
    monkeypatch.setenv("EPOCHAL_PROJECT", "pricing")
    with Client(plane.settings.url, token) as client:
        assert client.application("orders").name == "orders"
        assert client.applications.get("orders").project == "pricing"
        with pytest.raises(Conflict):
            client.projects.delete("pricing")
    with Client(plane.settings.url, token, project="default") as client:
        assert client.applications.list() == []
    monkeypatch.setenv("EPOCHAL_PROJECT", "No Project")
    with pytest.raises(OptionError, match="is no name of a project"):
        Client(plane.settings.url, token)


def test_the_command_line_and_its_project(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", str(plane.client.headers["authorization"]).removeprefix("Bearer "))

    def said(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert said("project", "create", "pricing", "--applications", "3")["quotas"]["applications"] == 3
    file = plane.settings.data / "orders.py"
    file.write_text('# {"sinks": {"out": "files:{out}"}}')
    wanted = plane.settings.data / "application.yaml"
    wanted.write_text("name: orders\nproject: pricing\ncode: orders.py\nparameters: {out: /o}\nstate: stopped\n")
    said("apply", "-f", str(wanted))
    assert [each["name"] for each in said("--project", "pricing", "ps")["items"]] == ["orders"]
    assert said("ps") == {"items": []}
    assert said("--project", "pricing", "show", "orders")["project"] == "pricing"
    assert {each["name"]: each["use"]["applications"] for each in said("project", "list")["items"]} == {
        "default": 0,
        "pricing": 1,
    }
    assert said("project", "set", "pricing", "--running", "1")["quotas"]["applications"] is None
    shown = CliRunner().invoke(app, ["project", "show", "pricing"], catch_exceptions=False)
    assert shown.stdout.split("\n")[:3] == ["pricing", "  applications 1", "  running 0 of 1"]
    said("--project", "pricing", "delete", "orders", "--yes")
    assert said("project", "delete", "pricing") == {"deleted": "pricing"}
