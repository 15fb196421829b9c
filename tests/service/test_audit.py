"""The audit log: no change without its entry, whoever dies when; who called, from where; entries that nobody forges."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from epochal.errors import CatalogUnavailable
from epochal.service.api.auditing import Audit
from tests.service.conftest import Plane


def entries(plane: Plane) -> list[tuple[str, str, int]]:
    return [(item["token"], item["action"], item["outcome"]) for item in plane.get("/v1/audit")["items"]]


@pytest.fixture
def ended_before_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is noted after a change, as when the control plane ends at that moment."""

    def write(*_: object) -> None:
        pass

    monkeypatch.setattr(Audit, "_write", write)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.usefixtures("ended_before_its_answer")
def test_a_change_has_its_entry_from_the_moment_on_when_it_is_there(plane: Plane, keyed: bool) -> None:
    def call(method: str, path: str, **body: Any) -> Any:
        headers = {"Idempotency-Key": f"{method} {path}".replace(" ", "-")} if keyed else {}
        answer = plane.client.request(method, path, json=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    artifact = plane.artifact()
    call("POST", "/v1/applications", name="flights", artifact=artifact, parameters={"out": "/data/x"}, start=False)
    call("POST", "/v1/applications/flights/start")
    made = call("POST", "/v1/tokens", name="ci", scope="read")
    call("DELETE", f"/v1/tokens/{made['id']}")

    assert [action for _, action, _ in entries(plane)] == [
        "DELETE /v1/tokens/{id}",
        "POST /v1/tokens",
        "POST /v1/applications/{name}/start",
        "POST /v1/applications",
        "POST /v1/artifacts",
    ]


def test_a_change_that_was_not_committed_has_no_entry_of_success(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.application(start=False)
    before = entries(plane)
    commit = Session.commit

    def fails_once(session: Session) -> None:
        monkeypatch.setattr(Session, "commit", commit)
        raise CatalogUnavailable("gone")

    monkeypatch.setattr(Session, "commit", fails_once)
    assert plane.client.post("/v1/applications/flights/start").status_code == 503
    assert entries(plane) == [("admin", "POST /v1/applications/{name}/start", 503), *before]


def test_an_entry_says_which_token_called_from_where(plane: Plane) -> None:
    made = plane.post("/v1/tokens", 201, name="ci", scope="operate")
    with plane.as_bearer(made["token"]) as client:
        answer = client.delete("/v1/applications/nothing")
    (entry,) = [item for item in plane.get("/v1/audit")["items"] if item["token"] == "ci"]
    assert (entry["token_id"], entry["address"], entry["outcome"]) == (made["id"], "127.0.0.1", 404)
    assert entry["request"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("name", ["a%0D%0A2026-01-01%20admin", "%E2%80%AEnimda", "a%1B%5B2Ja", "a%C2%85b"])
def test_a_path_forges_no_line(plane: Plane, name: str) -> None:
    assert plane.client.delete(f"/v1/applications/{name}").status_code in (404, 422)
    target = plane.get("/v1/audit")["items"][0]["target"]
    assert target.startswith("/v1/applications/") and target.isprintable() and "\\u" in target
