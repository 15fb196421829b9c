"""Calls that are repeated with their key: carried out once, answered as the first time."""

from __future__ import annotations

import hashlib
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.errors import CatalogUnavailable, OutcomeUnknown
from epochal.service.api import idempotency as middleware
from epochal.service.catalog import idempotency
from epochal.service.catalog.database import Database
from epochal.service.catalog.idempotency import IdempotencyKeys
from epochal.service.catalog.models import IdempotencyKey
from epochal.service.catalog.types import now
from epochal.service.domain.secrets import UserToken
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane

JSON = "application/json"


def sha256_of(method: str, path: str, body: bytes) -> str:
    """Of a request, as its key has it."""
    parts = (method.encode(), path.encode(), b"", body)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def test_a_repeated_call_is_answered_and_not_repeated(plane: Plane) -> None:
    body = {"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/x"}}
    key = {"Idempotency-Key": "create-flights"}
    first = plane.client.post("/v1/applications", json=body, headers=key)
    again = plane.client.post("/v1/applications", json=body, headers=key)

    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    assert "idempotency-replayed" not in first.headers and again.headers["idempotency-replayed"] == "true"
    assert len(plane.get("/v1/operations")["items"]) == 1
    assert plane.client.post("/v1/applications", json=body).status_code == 409


def test_a_refusal_is_repeated_too(plane: Plane) -> None:
    key = {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/applications/flights/start", headers=key)
    plane.application(start=False)
    again = plane.client.post("/v1/applications/flights/start", headers=key)

    assert first.status_code == again.status_code == 404


def test_a_key_is_good_for_one_request_of_one_token(plane: Plane) -> None:
    plane.application(start=False)
    key = {"Idempotency-Key": "k"}
    assert plane.client.post("/v1/applications/flights/start", json={}, headers=key).status_code == 202
    other_body = plane.client.post("/v1/applications/flights/start", json={"savepoint": "s"}, headers=key)
    check_problem(other_body, 422, "idempotency-key-reused")
    other_path = plane.client.post("/v1/applications/flights/stop", json={}, headers=key)
    check_problem(other_path, 422, "idempotency-key-reused")

    other_token = plane.as_bearer(plane.token("operate"))
    assert other_token.post("/v1/applications/flights/stop", json={}, headers=key).status_code == 202
    assert plane.as_bearer(None).post("/v1/applications/flights/start", headers=key).status_code == 401
    assert plane.client.post("/v1/applications/x/start", headers={"Idempotency-Key": "k" * 201}).status_code == 422


def test_a_forbidden_call_leaves_no_trace_of_its_key(plane: Plane) -> None:
    reader = plane.as_bearer(plane.token("read"))
    for _ in range(2):
        answer = reader.post("/v1/applications/flights/start", headers={"Idempotency-Key": "k"})
        assert answer.status_code == 403 and "idempotency-replayed" not in answer.headers


def test_what_only_reads_takes_no_key_and_writes_nothing(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.application(start=False)
    writes: list[object] = []
    writing = Database.writing

    def counted(database: Database, *arguments: Any) -> Any:
        writes.append(arguments)
        return writing(database, *arguments)

    monkeypatch.setattr(Database, "writing", counted)
    key = {"Idempotency-Key": "k"}
    lookup = plane.client.post("/v1/applications/flights/state/t/lookup", json={"keys": []}, headers=key)
    plan = plane.client.post("/v1/collections/plan", json={}, headers=key)
    nowhere = plane.client.post("/v1/nowhere", json={}, headers=key)
    assert (lookup.status_code, plan.status_code, nowhere.status_code) == (404, 200, 404)
    assert writes == []
    assert plane.client.post("/v1/applications/flights/start", headers=key).status_code == 202
    assert writes


def test_of_calls_at_once_with_one_key_one_is_carried_out(plane: Plane) -> None:
    body = {"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/x"}}
    answers: list[httpx.Response] = []

    def call() -> None:
        client = plane.as_bearer(plane.settings.admin_token_file.read_text().strip())
        answers.append(client.post("/v1/applications", json=body, headers={"Idempotency-Key": "k"}, timeout=30))

    threads = [threading.Thread(target=call) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {answer.status_code for answer in answers} <= {201, 409}
    created = [answer for answer in answers if answer.status_code == 201]
    assert created and len({answer.content for answer in created}) == 1
    assert len(plane.get("/v1/operations")["items"]) == 1


def test_a_call_that_is_worked_on_for_long_is_not_made_again_and_one_that_nobody_works_on_is(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its control plane is killed: nobody renews the claim on the key."""
    monkeypatch.setattr(idempotency, "_ABANDONED_AFTER", timedelta(seconds=0.3))
    monkeypatch.setattr(middleware, "RENEW_SECONDS", 0.05)
    go_on, create = threading.Event(), plane.control.savepoints.create
    monkeypatch.setattr(plane.control.savepoints, "create", lambda *all: go_on.wait(20) and create(*all))
    plane.application()
    plane.driver().epoch()
    path, key = "/v1/applications/flights/savepoints", {"Idempotency-Key": "k"}
    answers: list[httpx.Response] = []
    first = threading.Thread(target=lambda: answers.append(plane.client.post(path, json={"name": "s"}, headers=key)))
    first.start()
    with plane.as_bearer(plane.settings.admin_token_file.read_text().strip()) as another:
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            assert another.post(path, json={"name": "s"}, headers=key).status_code == 409
        go_on.set()
        first.join()
        assert another.post(path, json={"name": "s"}, headers=key).content == answers[0].content

        with plane.control.database.writing() as session:
            session.add(
                IdempotencyKey(
                    token=UserToken.parse(plane.settings.admin_token_file.read_text().strip()).id,
                    key="lost",
                    request_sha256=sha256_of("POST", path, b'{"name":"t"}'),
                    created_at=now() - timedelta(seconds=1),
                )
            )
        lost = another.post(path, content=b'{"name":"t"}', headers={"Idempotency-Key": "lost", "Content-Type": JSON})
        assert lost.status_code == 202


def test_an_answer_is_stored_when_the_catalog_is_back(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "KEEP_PAUSES", (0.01, 0.01))
    keep, troubles = IdempotencyKeys.keep, [CatalogUnavailable("away"), OutcomeUnknown("away")]

    def troubled(keys: IdempotencyKeys, *all: Any) -> None:
        if troubles:
            raise troubles.pop()
        keep(keys, *all)

    monkeypatch.setattr(IdempotencyKeys, "keep", troubled)
    plane.application()
    key = {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/applications/flights/stop", json={}, headers=key)
    again = plane.client.post("/v1/applications/flights/stop", json={}, headers=key)
    assert first.status_code == 202 and again.content == first.content and troubles == []


def test_a_repeated_token_request_does_not_tell_the_token_again(plane: Plane) -> None:
    body, key = {"name": "reader", "scope": "read"}, {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/tokens", json=body, headers=key).json()
    again = plane.client.post("/v1/tokens", json=body, headers=key)

    assert again.status_code == 201 and again.json() == {**first, "token": None}
