"""Projects: resources of a project are visible to, changed and used by callers with a role in it only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.errors import Conflict, OptionError, QuotaExceeded
from epochal.service.catalog.models import Token, WebhookDelivery
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


def test_names_are_scoped_to_their_project(plane: Plane, a: Project, b: Project) -> None:
    plane.application("flights")
    for each in (a, b):
        made = each.application("flights")
        assert (made["name"], made["project"]) == ("flights", each.name)
        assert made["branch"].startswith(f"{each.name}.flights-")
        assert [item["project"] for item in each.get("applications")["items"]] == [each.name]
    assert [item["project"] for item in plane.get("/v1/applications")["items"]] == ["default"]
    assert plane.get("/v1/projects/default/applications/flights") == plane.get("/v1/applications/flights")
    assert plane.get("/v1/applications/a.flights") == a.get("applications/flights")


def test_life_cycle_of_an_application_in_a_project(plane: Plane, a: Project) -> None:
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


def test_names_in_bodies_and_queries_belong_to_the_project_of_the_path(plane: Plane, a: Project, b: Project) -> None:
    """Every spelling of an application of another project is refused."""
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


def test_artifacts_are_usable_only_in_their_project(plane: Plane, a: Project, b: Project) -> None:
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
    # An upload of equal content is allowed, and does not reveal that another project has it.
    text = "# " + json.dumps({"sinks": {"out": "files:{out}"}, "content": SECRET})
    again = a.client.post(a.url("artifacts"), params={"filename": "own.py"}, content=text.encode())
    assert (again.status_code, again.json()["filename"]) == (201, "own.py")
    assert a.application("own", artifact=sha256, start=False)["artifact"] == sha256 != mine["artifact"]
    assert b.client.delete(b.url(f"artifacts/{sha256}")).status_code == 204
    assert a.get(f"artifacts/{sha256}")["filename"] == "own.py"
    refused = a.client.delete(a.url(f"artifacts/{sha256}"))
    assert (refused.status_code, "version 1 of 'own'" in refused.text) == (409, True)


def test_tokens_are_valid_in_one_project(plane: Plane, a: Project, b: Project) -> None:
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


def test_project_admins_are_not_admins_of_other_projects(plane: Plane, a: Project, b: Project) -> None:
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


def test_only_empty_projects_are_deleted_and_their_names_are_not_reused(plane: Plane, a: Project) -> None:
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


def test_calls_are_audited_in_their_project(plane: Plane, a: Project, b: Project) -> None:
    a.application("flights", start=False)
    assert b.client.post(a.url("applications/flights/start")).status_code == 403
    log = [(entry["target"], entry["token"], entry["outcome"]) for entry in a.get("audit")["items"]]
    assert ("/v1/projects/a/applications", "a.its-admin", 201) in log
    assert ("/v1/projects/a/applications/flights/start", "b.its-admin", 403) in log
    assert "flights" not in str(b.get("audit"))
    assert "flights" not in str(plane.get("/v1/audit"))


def test_targets_of_other_projects_are_refused_without_naming_the_owner(plane: Plane, a: Project, b: Project) -> None:
    b.application(SECRET, parameters={"out": "/shared"})
    refused = a.application("mine", 422, parameters={"out": "/shared"})
    assert refused["type"] == "urn:epochal:problem:shared-sink-targets"
    assert SECRET not in refused["detail"]
    assert "another project" in refused["detail"]


def test_full_names_have_a_maximum_length(plane: Plane, a: Project) -> None:
    a.application("x" * 60, start=False)
    refused = a.application("x" * 61, 422)
    assert (refused["type"], "at most 60" in refused["detail"]) == ("urn:epochal:problem:invalid-input", True)


def test_quotas_limit_a_project(plane: Plane) -> None:
    with project(plane, "small", applications=2, running=1, subtasks=4).client as client:
        small = Project(plane, "small", client)
        nodes = [{"id": 1, "name": "delays", "type": "aggregate"}]
        small.application("first", artifact=small.artifact("first", nodes=nodes), configuration={"parallelism": 4})
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
            ("applications/first/rescale", {"parallelisms": {"delays": 8}}),
            ("applications/first/versions", {"parameters": {"out": "/x"}, "configuration": {"parallelism": 8}}),
        ):
            assert small.post(call[0], 409, **call[1])["type"] == "urn:epochal:problem:quota-exceeded", call
        fork = small.post("applications/first/fork", 409, name="third", parameters={"out": "/x"}, start=False)
        assert fork["type"] == "urn:epochal:problem:quota-exceeded"
        small.post("applications/first/rescale", 202, parallelism=2)

        changed = plane.client.put("/v1/projects/small", json={"quotas": {"running": 5}}).json()
        assert changed["quotas"] == {"applications": None, "running": 5, "subtasks": None}
        small.application("third", configuration={"parallelism": 100})


def test_default_project_can_have_quotas(plane: Plane) -> None:
    plane.application()
    assert plane.get("/v1/projects/default")["created_at"] is None
    answer = plane.client.put("/v1/projects/default", json={"quotas": {"applications": 1}})
    assert answer.json()["use"]["applications"] == 1
    body = {"name": "second", "artifact": plane.artifact(), "parameters": {"out": "/2"}}
    assert plane.client.post("/v1/applications", json=body).json()["type"] == "urn:epochal:problem:quota-exceeded"


def test_webhooks_receive_events_of_their_project_only(plane: Plane, a: Project, b: Project) -> None:
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
    """Ids and data of the first ``count`` events after ``last``."""
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


def test_events_are_limited_to_their_project(plane: Plane, a: Project, b: Project) -> None:
    a.application("flights")
    b.application(SECRET)
    plane.driver(f"b.{SECRET}").epochs(2)
    plane.driver("a.flights").epochs(2)
    events = first_events(a.client, a.url("events"), 5, "flights/0")
    assert all(id.startswith("flights/") and data["project"] == "a" for id, data in events), events
    assert a.client.get(a.url("events"), headers={"Last-Event-ID": f"{SECRET}/1"}).status_code == 410
    one = first_events(a.client, a.url("applications/flights/events"), 2, "0")
    assert [data["application"] for _, data in one] == ["flights", "flights"]


def test_concurrent_calls_cannot_exceed_a_quota(plane: Plane) -> None:
    with project(plane, "small", applications=3).client as client:
        small = Project(plane, "small", client)
        sha256 = small.artifact("code")

        def create(number: int) -> int:
            body = {"name": f"n{number}", "artifact": sha256, "parameters": {"out": f"/{number}"}, "start": False}
            return client.post(small.url("applications"), json=body).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = sorted(pool.map(create, range(8)))
    assert statuses == [201] * 3 + [409] * 5


def test_client_uses_its_project(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(OptionError, match="is not a valid project name"):
        Client(plane.settings.url, token)


def test_command_line_uses_the_selected_project(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", str(plane.client.headers["authorization"]).removeprefix("Bearer "))

    def run_json(*words: str) -> Any:
        done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert run_json("project", "create", "pricing", "--applications", "3")["quotas"]["applications"] == 3
    file = plane.settings.data / "orders.py"
    file.write_text('# {"sinks": {"out": "files:{out}"}}')
    description = plane.settings.data / "application.yaml"
    description.write_text("name: orders\nproject: pricing\ncode: orders.py\nparameters: {out: /o}\nstate: stopped\n")
    run_json("apply", "-f", str(description))
    assert [each["name"] for each in run_json("--project", "pricing", "ps")["items"]] == ["orders"]
    assert run_json("ps") == {"items": []}
    assert run_json("--project", "pricing", "show", "orders")["project"] == "pricing"
    assert {each["name"]: each["use"]["applications"] for each in run_json("project", "list")["items"]} == {
        "default": 0,
        "pricing": 1,
    }
    assert run_json("project", "set", "pricing", "--running", "1")["quotas"]["applications"] is None
    shown = CliRunner().invoke(app, ["project", "show", "pricing"], catch_exceptions=False)
    assert shown.stdout.split("\n")[:3] == ["pricing", "  applications 1", "  running 0 of 1"]
    run_json("--project", "pricing", "delete", "orders", "--yes")
    assert run_json("project", "delete", "pricing") == {"deleted": "pricing"}
