"""Calls that are repeated with their key: carried out once, answered as the first time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.service.catalog.database import Database
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane


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


def test_a_repeated_token_request_does_not_tell_the_token_again(plane: Plane) -> None:
    body, key = {"name": "reader", "scope": "read"}, {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/tokens", json=body, headers=key).json()
    again = plane.client.post("/v1/tokens", json=body, headers=key)

    assert again.status_code == 201 and again.json() == {**first, "token": None}
