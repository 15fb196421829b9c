"""The audit log: each change has an entry despite crashes, with the caller, its address and the differences."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.errors import CatalogUnavailable
from epochal.service.api import auditing as middleware
from epochal.service.catalog.audit import AuditedCall, CallDetails, Caller, auditing
from epochal.service.catalog.models import Token
from epochal.service.catalog.types import now
from epochal.service.domain.proxies import read_trusted_proxies
from epochal.service.domain.settings import Settings
from tests.service.conftest import Plane, http_client


def entries(plane: Plane) -> list[tuple[str, str, int]]:
    return [(item["token"], item["action"], item["outcome"]) for item in plane.get("/v1/audit")["items"]]


@pytest.fixture
def killed_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane writes no audit entry after the change, as if it had died."""

    def write(*_: object) -> None:
        pass

    monkeypatch.setattr(middleware, "_write", write)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.usefixtures("killed_before_the_answer")
def test_a_change_is_committed_together_with_its_entry(plane: Plane, keyed: bool) -> None:
    def call(method: str, path: str, **body: Any) -> Any:
        headers = {"Idempotency-Key": f"{method} {path}".replace(" ", "-")} if keyed else {}
        answer = plane.client.request(method, path, json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    artifact = plane.artifact()
    call("POST", "/v1/applications", name="flights", artifact=artifact, parameters={"out": "/data/x"}, start=False)
    call("POST", "/v1/applications/flights/start")
    made = call("POST", "/v1/tokens", name="ci", role="viewer")
    call("DELETE", f"/v1/tokens/{made['id']}")

    assert [action for _, action, _ in entries(plane)] == [
        "DELETE /v1/tokens/{id}",
        "POST /v1/tokens",
        "POST /v1/applications/{name}/start",
        "POST /v1/applications",
        "POST /v1/artifacts",
    ]


def test_an_uncommitted_change_has_no_entry_of_success(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.application(start=False)
    before = entries(plane)
    commit = Session.commit

    def fails_once(session: Session) -> None:
        monkeypatch.setattr(Session, "commit", commit)
        raise CatalogUnavailable("unreachable")

    monkeypatch.setattr(Session, "commit", fails_once)
    assert plane.client.post("/v1/applications/flights/start").status_code == 503
    assert entries(plane) == [("admin", "POST /v1/applications/{name}/start", 503), *before]


def test_an_entry_contains_the_token_and_the_address(plane: Plane) -> None:
    made = plane.post("/v1/tokens", 201, name="ci", role="author")
    with plane.as_bearer(made["token"]) as client:
        answer = client.delete("/v1/applications/nothing")
    (entry,) = [item for item in plane.get("/v1/audit")["items"] if item["token"] == "ci"]
    assert (entry["token_id"], entry["address"], entry["outcome"]) == (made["id"], "127.0.0.1", 404)
    assert entry["request"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("name", ["a%0D%0A2026-01-01%20admin", "%E2%80%AEnimda", "a%1B%5B2Ja", "a%C2%85b"])
def test_control_characters_in_a_path_are_escaped(plane: Plane, name: str) -> None:
    assert plane.client.delete(f"/v1/applications/{name}").status_code in (404, 422)
    target = plane.get("/v1/audit")["items"][0]["target"]
    assert target.startswith("/v1/applications/") and target.isprintable() and "\\u" in target


def changes(plane: Plane, log: str = "/v1/audit") -> dict[tuple[str, str], tuple[Any, Any]]:
    """Values before and after the latest change, by subject and field."""
    (latest,) = plane.get(log, limit=1)["items"]
    return {(item["subject"], item["field"]): (item["before"], item["after"]) for item in latest["changes"]}


def test_an_entry_lists_the_differences_of_an_upgrade(plane: Plane) -> None:
    plane.application(start=False, configuration={"parallelism": 2})
    assert changes(plane)["version 1", "parameters.out"] == (None, "/data/flights")
    plane.post(
        "/v1/applications/flights/versions",
        201,
        configuration={"parallelism": 4},
        parameters={"out": "/data/flights", "since": "2026"},
        message="for the holidays",
    )
    found = changes(plane)
    assert {what: values for what, values in found.items() if what[0] == "version 2"} == {
        ("version 2", "configuration.parallelism"): (2, 4),
        ("version 2", "parameters.since"): (None, "2026"),
        ("version 2", "message"): (None, "for the holidays"),
    }


def test_an_entry_lists_the_states_before_and_after_a_stop(plane: Plane) -> None:
    plane.application()
    plane.driver().running()
    execution = plane.get("/v1/applications/flights")["execution"]
    plane.post("/v1/applications/flights/stop")
    assert changes(plane)[f"execution {execution}", "state"] == ("running", "stopping")


def test_entries_about_tokens_contain_no_secret(plane: Plane) -> None:
    made = plane.post("/v1/tokens", 201, name="ci", role="operator", expires_at="2100-01-01T00:00:00Z")
    assert changes(plane) == {
        ("token ci", "id"): (None, made["id"]),
        ("token ci", "roles.default"): (None, "operator"),
        ("token ci", "expires_at"): (None, "2100-01-01T00:00:00+00:00"),
    }
    new = plane.post(f"/v1/tokens/{made['id']}/rotate", 201)
    assert changes(plane) == {("token ci", "id"): (made["id"], new["id"])}
    assert plane.client.delete(f"/v1/tokens/{new['id']}").status_code == 204
    assert changes(plane)["token ci", "roles.default"] == ("operator", None)
    assert plane.post("/v1/webhooks", 201, url="https://example.org/x", kinds=["epoch.aborted"])["secret"]
    text = plane.client.get("/v1/audit").text
    assert "whsec_" not in text and not any(item["token"] in text for item in (made, new))


def test_differences_are_committed_together_with_the_change(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds for each transaction of a call, also if the control plane dies before its answer."""
    monkeypatch.setattr(middleware, "_write", lambda *_: None)
    database = plane.control.database
    details = CallDetails(Caller("admin", None, None), "POST /x", "/x", 200, "r")
    with auditing(AuditedCall(details)):
        for state in ("first", "second"):
            with database.writing() as session:
                session.add(token(state))
            (latest,) = plane.get("/v1/audit", limit=1)["items"]
            assert [item["after"] for item in latest["changes"] if item["field"] == "id"][-1] == state


def token(name: str) -> Token:
    return Token(id=name, name=name, secret_sha256=name, created_at=now(), created_by="x", roles={"default": "viewer"})


def test_differences_are_bounded_and_contain_no_secrets(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHAL_SECRET_X", "correct-horse-battery")
    many = {f"p{number:03}": "x" * 100_000 for number in range(60)}
    shown = {"out": "/data/x", "a": {"b": ["sql://me:hush@db/x", "correct-horse-battery"]}, "\u202e\n": "\x1b[2J"}
    artifact = plane.artifact()
    plane.post("/v1/applications", 201, name="flights", artifact=artifact, parameters=shown | many, start=False)
    answer = plane.client.get("/v1/audit", params={"limit": 1})
    (latest,) = answer.json()["items"]
    assert (len(latest["changes"]), latest["changes_left_out"] > 20) == (40, True)
    assert len(answer.content) < 20_000
    assert "hush" not in answer.text and "correct-horse" not in answer.text and "***" in answer.text
    found = {item["field"]: item["after"] for item in latest["changes"]}
    assert found["parameters.\\u202e\\u000a"] == "\\u001b[2J"
    assert found["parameters.p000"] == "x" * 200 + ".. (100000 characters)"


def test_every_kind_of_change_lists_its_differences(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    driver.epoch()
    path, snapshot = "/v1/applications/flights", "/v1/applications/flights/snapshots/1"
    hook = {"url": "https://example.org/x", "kinds": ["epoch.aborted"]}
    made = [
        plane.client.request(method, target, json=body)
        for method, target, body in (
            ("POST", f"{snapshot}/pin", {"message": "before the move"}),
            ("DELETE", f"{snapshot}/pin", None),
            ("POST", f"{snapshot}/tags", {"name": "good"}),
            ("DELETE", f"{snapshot}/tags/good", None),
            ("POST", f"{snapshot}/message", {"message": "quarter's end"}),
            ("DELETE", f"{snapshot}/message", None),
            ("POST", f"{path}/savepoints", {"name": "monday"}),
            ("POST", f"{path}/rescale", {"parallelism": 3}),
            ("POST", "/v1/webhooks", hook),
            ("POST", "/v1/imports", {"sha256": "0" * 64, "bytes": 10}),
            ("POST", f"{path}/fork", {"name": "copy", "shadow": True, "start": False}),
            ("DELETE", "/v1/applications/copy", None),
            ("POST", f"{path}/stop", {}),
        )
    ]
    made.append(plane.client.delete(f"/v1/webhooks/{made[8].json()['id']}"))
    made.append(plane.client.delete(f"/v1/imports/{made[9].json()['id']}"))
    assert [answer.text for answer in made if not answer.is_success] == []
    items = plane.get("/v1/audit")["items"]
    assert len(items) == len(made) + 2
    assert [item["action"] for item in items if not item["changes"]] == []


def test_audit_command_lists_callers_and_differences(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.application(start=False, configuration={"parallelism": 2})
    plane.post("/v1/applications/flights/versions", 201, configuration={"parallelism": 4})
    with plane.as_bearer(plane.token("viewer")) as viewer:
        viewer.delete("/v1/applications/flights")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.admin_token)
    shown = CliRunner().invoke(app, ["audit"]).output
    assert "a-viewer from 127.0.0.1  DELETE /v1/applications/flights  403" in shown
    assert 'token a-viewer: roles.default unset → "viewer"' in shown
    assert "version 2: configuration.parallelism 2 → 4" in shown
    latest = json.loads(CliRunner().invoke(app, ["audit", "-n", "1", "--json"]).output)["items"][0]
    assert (latest["outcome"], latest["changes"]) == (403, [])


def test_changes_of_quotas_are_listed(plane: Plane) -> None:
    assert plane.client.post("/v1/projects", json={"name": "air", "quotas": {"applications": 5}}).is_success
    assert changes(plane) == {("project air", "applications"): (None, 5)}
    assert plane.client.put("/v1/projects/air", json={"quotas": {"applications": 9, "running": 2}}).is_success
    in_it = changes(plane, "/v1/projects/air/audit")
    assert in_it == {("project air", "applications"): (5, 9), ("project air", "running"): (None, 2)}


@pytest.mark.parametrize(
    ("proxies", "address"), [("", "127.0.0.1"), ("127.0.0.1", "192.0.2.7"), ("10.0.0.0/8", "127.0.0.1")]
)
def test_only_a_trusted_proxy_determines_the_address(
    settings: Settings, serve: Callable[..., Any], proxies: str, address: str
) -> None:
    trusting = settings.model_copy(update={"trusted_proxies": read_trusted_proxies(proxies)})
    forged = {"X-Forwarded-For": "203.0.113.9, 192.0.2.7", "X-Forwarded-Proto": "https"}
    with serve(trusting) as (_, token), http_client(settings, token) as client:
        client.delete("/v1/applications/nothing", headers=forged)
        client.delete("/v1/applications/nothing", headers={"X-Forwarded-For": "203.0.113.9, unknown"})
        entries = client.get("/v1/audit").json()["items"]
    assert [entry["address"] for entry in entries] == ["127.0.0.1", address]


def test_entries_are_filtered_by_caller_action_application_and_time(plane: Plane) -> None:
    for name in ("flights", "orders"):
        plane.application(name, start=False)
    with plane.as_bearer(plane.token("operator", "ada")) as client:
        for path in ("/v1/applications/flights/start", "/v1/applications/flights/stop", "/v1/tokens"):
            client.post(path, json={})

    def found(**only: Any) -> list[str]:
        return [item["action"].rpartition("/v1/")[2] for item in plane.get("/v1/audit", **only)["items"]]

    start, stop = "applications/{name}/start", "applications/{name}/stop"
    assert found(token="ada") == ["tokens", stop, start]
    assert found(application="flights") == [stop, start, "applications"]
    assert found(application="orders") == ["applications"]
    assert found(action=f"POST /v1/{stop}") == [stop]
    assert found(token="ada", application="flights", action=f"POST /v1/{start}") == [start]
    assert found(token="nobody") == []
    items = plane.get("/v1/audit")["items"]
    assert [item["id"] for item in items] == sorted((item["id"] for item in items), reverse=True)
    last = items[0]["at"]
    assert found(until=last) == [item["action"].rpartition("/v1/")[2] for item in items if item["at"] < last]
    assert found(since=last) == ["tokens"]
    # A cursor continues the list with the same filters only.
    page = plane.get("/v1/audit", token="ada", limit=1)
    assert page["items"][0]["application"] is None
    following = plane.get("/v1/audit", token="ada", limit=1, cursor=page["next_cursor"])
    assert [item["application"] for item in following["items"]] == ["flights"]
    refused = plane.client.get("/v1/audit", params={"cursor": page["next_cursor"]})
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:epochal:problem:invalid-cursor")


def test_applications_of_other_projects_have_their_local_names(plane: Plane) -> None:
    plane.post("/v1/projects", 201, name="air")
    plane.client.delete("/v1/projects/air/applications/flights")
    plane.client.delete("/v1/applications/air.flights")
    items = plane.get("/v1/projects/air/audit", application="flights")["items"]
    assert [item["action"] for item in items] == ["DELETE /v1/applications/{name}"] * 2
    assert plane.get("/v1/audit", application="flights")["items"] == []


@pytest.mark.parametrize("column", ["token", "action", "application"])
def test_a_filter_uses_its_index(plane: Plane, column: str) -> None:
    query = f"SELECT * FROM audit WHERE project = 'default' AND {column} = 'x' ORDER BY id DESC LIMIT 51"
    with plane.control.database.reading() as session:
        if session.get_bind().dialect.name != "sqlite":
            pytest.skip("PostgreSQL chooses a plan by the size of the table")
        plan = str(session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all())
    assert f"ix_audit_{column}" in plan and "TEMP B-TREE" not in plan


def test_the_command_filters(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in plane.environment.items():
        monkeypatch.setenv(name, value)
    plane.application(start=False)

    def listed(*options: str) -> list[str]:
        output = CliRunner().invoke(app, ["audit", "--json", *options]).output
        return [item["action"] for item in json.loads(output)["items"]]

    assert listed("--app", "flights") == ["POST /v1/applications"]
    assert listed("--action", "POST /v1/artifacts", "--token", "admin") == ["POST /v1/artifacts"]
    assert listed("--since", "2020-01-01", "--until", "2020-01-02T03:00:00+02:00") == []
