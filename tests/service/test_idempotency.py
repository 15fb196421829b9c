"""Calls repeated with their idempotency key take effect once and receive the first answer."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.errors import CallInProgress, CallOutcomeUnknown, CatalogUnavailable, OutcomeUnknown
from epochal.service.api import idempotency as middleware
from epochal.service.catalog import database as catalog_database
from epochal.service.catalog import idempotency
from epochal.service.catalog.database import Database
from epochal.service.catalog.idempotency import IdempotencyKeys, KeyClaim, StoredAnswer
from epochal.service.catalog.models import IdempotencyKey
from epochal.service.catalog.types import now
from epochal.service.domain.secrets import UserToken
from tests.kit.catalogs import new_sqlite_catalog
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane

JSON = "application/json"


def sha256_of(method: str, path: str, body: bytes) -> str:
    """The checksum of a request as stored with its key."""
    parts = (method.encode(), path.encode(), b"", body)
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def test_a_repeated_call_is_answered_without_effect(plane: Plane) -> None:
    body = {"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/x"}}
    key = {"Idempotency-Key": "create-flights"}
    first = plane.client.post("/v1/applications", json=body, headers=key)
    again = plane.client.post("/v1/applications", json=body, headers=key)

    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    assert "idempotency-replayed" not in first.headers and again.headers["idempotency-replayed"] == "true"
    assert len(plane.get("/v1/operations")["items"]) == 1
    assert plane.client.post("/v1/applications", json=body).status_code == 409


def test_a_refusal_is_replayed(plane: Plane) -> None:
    key = {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/applications/flights/start", headers=key)
    plane.application(start=False)
    again = plane.client.post("/v1/applications/flights/start", headers=key)

    assert first.status_code == again.status_code == 404


def test_a_key_is_valid_for_one_request_of_one_token(plane: Plane) -> None:
    plane.application(start=False)
    key = {"Idempotency-Key": "k"}
    assert plane.client.post("/v1/applications/flights/start", json={}, headers=key).status_code == 202
    other_body = plane.client.post("/v1/applications/flights/start", json={"savepoint": "s"}, headers=key)
    check_problem(other_body, 422, "idempotency-key-reused")
    other_path = plane.client.post("/v1/applications/flights/stop", json={}, headers=key)
    check_problem(other_path, 422, "idempotency-key-reused")

    other_token = plane.as_bearer(plane.token("author"))
    assert other_token.post("/v1/applications/flights/stop", json={}, headers=key).status_code == 202
    assert plane.as_bearer(None).post("/v1/applications/flights/start", headers=key).status_code == 401
    assert plane.client.post("/v1/applications/x/start", headers={"Idempotency-Key": "k" * 201}).status_code == 422


def test_the_key_of_a_forbidden_call_is_not_stored(plane: Plane) -> None:
    reader = plane.as_bearer(plane.token("viewer"))
    for _ in range(2):
        answer = reader.post("/v1/applications/flights/start", headers={"Idempotency-Key": "k"})
        assert answer.status_code == 403 and "idempotency-replayed" not in answer.headers


def test_a_reading_call_ignores_its_key_and_writes_nothing(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
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
    unknown = plane.client.post("/v1/unknown", json={}, headers=key)
    assert (lookup.status_code, plan.status_code, unknown.status_code) == (404, 200, 404)
    assert writes == []
    assert plane.client.post("/v1/applications/flights/start", headers=key).status_code == 202
    assert writes


def test_one_of_several_concurrent_calls_with_a_key_takes_effect(plane: Plane) -> None:
    body = {"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/x"}}
    answers: list[httpx.Response] = []

    def call() -> None:
        client = plane.as_bearer(plane.admin_token)
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


def test_a_slow_call_is_not_repeated_and_an_abandoned_one_is(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed control plane does not renew its claim on the key."""
    monkeypatch.setattr(idempotency, "_ABANDONED_AFTER", timedelta(seconds=0.3))
    monkeypatch.setattr(middleware, "RENEW_SECONDS", 0.05)
    begun, proceed, create = threading.Event(), threading.Event(), plane.control.savepoints.create

    def slowly(*all: Any) -> Any:
        begun.set()
        assert proceed.wait(20)
        return create(*all)

    monkeypatch.setattr(plane.control.savepoints, "create", slowly)
    plane.application()
    plane.driver().epoch()
    path, key = "/v1/applications/flights/savepoints", {"Idempotency-Key": "k"}
    answers: list[httpx.Response] = []
    first = threading.Thread(target=lambda: answers.append(plane.client.post(path, json={"name": "s"}, headers=key)))
    first.start()
    assert begun.wait(20)
    with plane.as_bearer(plane.admin_token) as another:
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            assert another.post(path, json={"name": "s"}, headers=key).status_code == 409
        proceed.set()
        first.join()
        assert another.post(path, json={"name": "s"}, headers=key).content == answers[0].content

        with plane.control.database.writing() as session:
            session.add(
                IdempotencyKey(
                    token=UserToken.parse(plane.admin_token).id,
                    key="lost",
                    request_sha256=sha256_of("POST", path, b'{"name":"t"}'),
                    created_at=now() - timedelta(seconds=1),
                    holder="killed",
                )
            )
        lost = another.post(path, content=b'{"name":"t"}', headers={"Idempotency-Key": "lost", "Content-Type": JSON})
        assert lost.status_code == 202


class Killed(BaseException):
    """Derives from BaseException so that no handler for errors runs, as in a killed process."""


def kill(*_: object) -> None:
    raise Killed


@pytest.fixture
def immediate_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "_ABANDONED_AFTER", timedelta(0))


@pytest.mark.usefixtures("immediate_takeover")
@pytest.mark.parametrize("point", ["before", "within", "after", "answered"])
def test_a_call_whose_control_plane_is_killed_takes_effect_once(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Killed before the transaction, within it, after its commit, and after storing the answer."""
    body, key = {"name": "reader", "role": "viewer"}, {"Idempotency-Key": "k"}
    with monkeypatch.context() as patch:
        patch.setattr(IdempotencyKeys, "release", kill)
        match point:
            case "before":
                patch.setattr(plane.control.tokens, "create", kill)
            case "within":
                patch.setattr(catalog_database, "record_effect", lambda *all: (idempotency.record_effect(*all), kill()))
            case "after":
                patch.setattr(IdempotencyKeys, "keep", kill)
            case "answered":
                patch.setattr(middleware, "_messages", kill)
        assert plane.client.post("/v1/tokens", json=body, headers=key).status_code == 500
    for _ in range(2):
        again = plane.client.post("/v1/tokens", json=body, headers=key)
        if point == "after":
            check_problem(again, 409, "call-outcome-unknown")
        else:
            assert again.status_code == 201
    assert [item["name"] for item in plane.get("/v1/tokens")["items"]] == ["admin", "reader"]
    new_key = plane.client.post("/v1/tokens", json=body, headers={"Idempotency-Key": "another"})
    check_problem(new_key, 409, "name-taken")


@pytest.mark.usefixtures("immediate_takeover")
def test_a_paused_control_plane_has_no_effect_after_a_takeover(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, proceed = threading.Event(), threading.Event()
    create, first = plane.control.savepoints.create, list[httpx.Response]()

    def slow(*all: Any) -> Any:
        if not stopped.is_set():
            stopped.set()
            assert proceed.wait(20)
        return create(*all)

    monkeypatch.setattr(plane.control.savepoints, "create", slow)
    plane.application()
    plane.driver().epoch()
    path, key = "/v1/applications/flights/savepoints", {"Idempotency-Key": "k"}
    thread = threading.Thread(target=lambda: first.append(plane.client.post(path, json={"name": "s"}, headers=key)))
    thread.start()
    assert stopped.wait(20)
    with plane.as_bearer(plane.admin_token) as another:
        answer = another.post(path, json={"name": "s"}, headers=key)
        assert answer.status_code == 202
        proceed.set()
        thread.join()
        check_problem(first[0], 409, "call-in-progress")
        assert first[0].headers["retry-after"] == "1"
        assert another.post(path, json={"name": "s"}, headers=key).content == answer.content
    assert sum(item["kind"] == "savepoint" for item in plane.get("/v1/operations")["items"]) == 1


def test_a_call_with_an_unknown_outcome_is_not_repeated(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    body, key = {"name": "reader", "role": "viewer"}, {"Idempotency-Key": "k"}
    create = plane.control.tokens.create

    def unanswered(*all: Any) -> Any:
        create(*all)
        raise OutcomeUnknown("the connection broke at the commit")

    with monkeypatch.context() as patch:
        patch.setattr(plane.control.tokens, "create", unanswered)
        check_problem(plane.client.post("/v1/tokens", json=body, headers=key), 503, "outcome-unknown")
    check_problem(plane.client.post("/v1/tokens", json=body, headers=key), 409, "call-outcome-unknown")


def test_an_idempotent_call_is_repeated_after_a_failure(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = {"filename": "flights.py"}, {"Idempotency-Key": "k"}
    register = plane.control.artifacts.register

    def fails_late(*all: Any) -> Any:
        register(*all)
        raise CatalogUnavailable("unreachable")

    with monkeypatch.context() as patch:
        patch.setattr(plane.control.artifacts, "register", fails_late)
        assert plane.client.post("/v1/artifacts", params=query, content=b"#", headers=key).status_code == 503
    assert plane.client.post("/v1/artifacts", params=query, content=b"#", headers=key).status_code == 200


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Database, IdempotencyKeys]]:
    if request.param == "sqlite":
        url = new_sqlite_catalog(tmp_path / "catalog.sqlite")
    else:
        url = str(request.getfixturevalue("postgresql_catalog_url"))
    with closing(Database(url)) as database:
        yield database, IdempotencyKeys(database, timedelta(days=1))


def test_one_of_several_concurrent_claims_of_a_key_succeeds(
    keys: tuple[Database, IdempotencyKeys],
) -> None:
    together = threading.Barrier(4)

    def claim(_: int) -> object:
        together.wait(20)
        try:
            return keys[1].claim("token", "key", "request")
        except CallInProgress:
            return None

    with ThreadPoolExecutor(4) as pool:
        claimed = list(pool.map(claim, range(4)))
    assert sum(isinstance(found, KeyClaim) for found in claimed) == 1


def test_a_superseded_claim_has_no_effect_and_stores_nothing(
    keys: tuple[Database, IdempotencyKeys], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, idempotency_keys = keys
    late = idempotency_keys.claim("token", "key", "request")
    assert isinstance(late, KeyClaim)
    with pytest.raises(CallInProgress):
        idempotency_keys.claim("token", "key", "request")
    monkeypatch.setattr(idempotency, "_ABANDONED_AFTER", timedelta(0))
    successor = idempotency_keys.claim("token", "key", "request")
    assert isinstance(successor, KeyClaim)
    with pytest.raises(CallInProgress), idempotency.making(late), database.writing():
        pass
    idempotency_keys.keep(late, StoredAnswer(200, [], b"late"))
    idempotency_keys.release(late)
    with idempotency.making(successor), database.writing():
        pass
    assert successor.acted and not late.acted
    with pytest.raises(CallOutcomeUnknown):
        idempotency_keys.claim("token", "key", "request")
    idempotency_keys.keep(successor, StoredAnswer(200, [], b"done"))
    assert idempotency_keys.claim("token", "key", "request") == StoredAnswer(200, [], b"done")


def test_an_answer_is_stored_once_the_catalog_is_reachable(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "KEEP_PAUSES", (0.01, 0.01))
    keep, failures = IdempotencyKeys.keep, [CatalogUnavailable("unreachable"), OutcomeUnknown("unreachable")]

    def keep_with_errors(keys: IdempotencyKeys, *all: Any) -> None:
        if failures:
            raise failures.pop()
        keep(keys, *all)

    monkeypatch.setattr(IdempotencyKeys, "keep", keep_with_errors)
    plane.application()
    key = {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/applications/flights/stop", json={}, headers=key)
    again = plane.client.post("/v1/applications/flights/stop", json={}, headers=key)
    assert first.status_code == 202 and again.content == first.content and failures == []


def test_a_replayed_answer_contains_no_token(plane: Plane) -> None:
    body, key = {"name": "reader", "role": "viewer"}, {"Idempotency-Key": "k"}
    first = plane.client.post("/v1/tokens", json=body, headers=key).json()
    again = plane.client.post("/v1/tokens", json=body, headers=key)

    assert again.status_code == 201 and again.json() == {**first, "token": None}
