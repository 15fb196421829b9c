"""Look-ups over a real socket, from real snapshots: the epoch that answers, and the error if none can."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.service.lookups import (
    DELAYS,
    HIDDEN,
    KEYS,
    VISITS,
    StateDriver,
    get,
    place,
    refused,
    route,
)

if TYPE_CHECKING:
    from tests.service.conftest import Plane


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    return StateDriver(plane)


def test_lookup_returns_the_value_and_its_epoch(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, None)]))
    assert get(plane, "JFK,LAX", min_epoch=2) == {
        "table": "delays",
        "key": {"origin": "JFK", "destination": "LAX"},
        "value": {"flights": 2, "worst": None},
        "branch": driver.driver.point.branch,
        "epoch": 2,
        "isolation": "read_committed",
    }


def test_fast_path_and_route_return_equal_answers(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5), route("a/b", "ü,%", 2, 0.5)]))
    get(plane, "JFK,LAX", min_epoch=1)
    for key in ("JFK,LAX", "a%2Fb,%C3%BC%2C%25"):
        short = plane.client.get(KEYS + key)
        ordinary = plane.client.get(KEYS + key, params={"isolation": "read_committed"})
        assert short.content == ordinary.content
        for name in ("content-type", "etag", "epochal-epoch", "cache-control", "content-length"):
            assert short.headers[name] == ordinary.headers[name]
        assert short.headers["x-request-id"] and ordinary.headers["x-request-id"]
    for proposed, kept in (("mine-1", True), ("not mine", False)):
        answer = plane.client.get(KEYS + "JFK,LAX", headers={"X-Request-Id": proposed})
        assert (answer.headers["x-request-id"] == proposed) == kept
    text = plane.client.get("/metrics").text
    assert 'epochal_lookup_seconds_count{application="flights"}' in text


def test_lookups_require_a_valid_token(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    get(plane, "JFK,LAX", min_epoch=1)
    for token in (None, "ept_wrong"):
        with plane.as_bearer(token) as client:
            assert client.get(KEYS + "JFK,LAX").status_code == 401
            assert client.post("/v1/applications/flights/state/delays/lookup", json={"keys": []}).status_code == 401
    with plane.as_bearer(plane.token("viewer")) as client:
        assert client.get(KEYS + "JFK,LAX").status_code == 200


INVALID_REQUESTS = [
    (KEYS + "JFK,SFO", 404, "key-not-found", "at epoch 1"),
    (KEYS + "JFK", 422, "invalid-key", "{origin},{destination}"),
    (KEYS + "JFK,LAX,1", 422, "invalid-key", "3 values"),
    ("/v1/applications/flights/state/streaks/keys/N1", 404, "not-found", "it has delays, visits.places"),
    ("/v1/applications/flights/state/hidden/keys/1", 404, "not-found", "queryable=True"),
    ("/v1/applications/missing/state/delays/keys/a,b", 404, "not-found", "missing"),
    ("/v1/applications/missing/state", 404, "not-found", "missing"),
    (KEYS + "JFK,LAX?epoch=9", 404, "not-found", "9"),
    (KEYS + "JFK,LAX?epoch=1&savepoint=x", 422, "invalid-input", "not both"),
    (KEYS + "JFK,LAX?epoch=1&isolation=read_uncommitted", 422, "invalid-input", "isolation"),
    (KEYS + "JFK,LAX?savepoint=none", 404, "not-found", "none"),
    ("/v1/applications/flights/state/hidden/keys/1?epoch=1", 404, "not-found", "queryable=True"),
    ("/v1/applications/flights/state/streaks/keys/1?epoch=1", 404, "not-found", "streaks"),
]


def test_missing_or_invalid_keys_are_reported(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]), (HIDDEN, [{"k": 1, "v": 1}]))
    get(plane, "JFK,LAX", min_epoch=1)
    for path, status, slug, message in INVALID_REQUESTS:
        found_status, found_slug, detail = refused(plane, path)
        assert (found_status, found_slug) == (status, slug), f"{path}: {detail}"
        assert message in detail, path


STATE = "/v1/applications/flights/state"
PARAMETERS = [
    ("POST", f"{STATE}/delays/lookup?epoch=1", ["epoch"], "send its value in the body"),
    ("POST", f"{STATE}/delays/lookup?epoch=1&isolation=read_uncommitted", ["epoch", "isolation"], "in the body"),
    (
        "GET",
        f"{KEYS}JFK,LAX?epcoh=1",
        ["epcoh"],
        "the endpoint has at, epoch, isolation, min_epoch, savepoint, tag, wait_seconds",
    ),
    ("GET", f"{STATE}/delays/keys?key=JFK,LAX&prefix=", ["prefix"], "the endpoint has at, epoch, isolation, key, "),
    ("GET", f"{STATE}/delays/scan?key=JFK", ["key"], "cursor, epoch, isolation, limit, "),
    ("GET", "/v1/applications/flights?epoch=1", ["epoch"], "this endpoint has no parameters"),
    (
        "POST",
        "/v1/artifacts?filename=a.py&name=b",
        ["name"],
        "the endpoint has filename; send everything",
    ),
    ("POST", "/v1/applications/flights/stop?drain=true", ["drain"], "in the body"),
]
"""Requests, the parameters that are refused, and the fix that the message proposes."""


def test_unknown_parameters_are_refused(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    get(plane, "JFK,LAX", min_epoch=1)
    for method, path, names, message in PARAMETERS:
        body = (
            {"json": {"keys": [route("JFK", "LAX")]}} if "lookup" in path else {"json": {}} if method == "POST" else {}
        )
        answer = plane.client.request(method, path, **body)
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (422, "urn:epochal:problem:invalid-request"), path
        assert [error["field"] for error in problem["errors"]] == names, path
        assert all(message in error["message"] for error in problem["errors"]), problem
        with plane.as_bearer(None) as anonymous:
            assert anonymous.request(method, path, **body).status_code == 401, path
    assert plane.client.get("/healthz?anything=1").status_code == 200
    batch = {"keys": [route("JFK", "LAX")], "epoch": 1}
    assert plane.client.post(f"{STATE}/delays/lookup", json=batch).json()["values"] == [{"flights": 1, "worst": 2.5}]


def test_state_is_empty_before_the_first_commit(plane: Plane, driver: StateDriver) -> None:
    assert plane.get("/v1/applications/flights/state")["items"] == []
    assert refused(plane, KEYS + "JFK,LAX")[1] == "not-found"
    driver.prepare((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    assert "not committed an epoch" in refused(plane, KEYS + "JFK,LAX")[2]


@pytest.mark.claim("Thesis, 4.3.1")
def test_uncommitted_reads_include_prepared_epochs(plane: Plane, driver: StateDriver) -> None:
    driver.epoch(
        (DELAYS, [route("JFK", "LAX", 1, 1.0), route("LGA", "ATL", 1, 1.0)]), (VISITS, [place("N1", "JFK", 1)])
    )
    driver.prepare((DELAYS, [route("JFK", "LAX", 2, 2.0), route("EWR", "BOS", 1, 1.0)]))
    driver.prepare((DELAYS, [route("LGA", "ATL"), route("EWR", "BOS", 7, 1.0)]), (VISITS, [place("N1", "LAX", 2)]))
    committed = get(plane, "JFK,LAX", min_epoch=1)
    assert (committed["epoch"], committed["value"]["flights"]) == (1, 1)
    uncommitted = get(plane, "JFK,LAX", isolation="read_uncommitted", min_epoch=3)
    assert (uncommitted["epoch"], uncommitted["isolation"]) == (3, "read_uncommitted")
    assert uncommitted["value"]["flights"] == 2
    assert get(plane, "EWR,BOS", isolation="read_uncommitted")["value"]["flights"] == 7
    assert refused(plane, KEYS + "LGA,ATL", isolation="read_uncommitted")[1] == "key-not-found"
    assert get(plane, "LGA,ATL")["value"]["flights"] == 1
    visits = plane.get("/v1/applications/flights/state/visits.places/keys/N1", isolation="read_uncommitted")
    assert visits["entries"] == [{"airport": "JFK", "late": 1}, {"airport": "LAX", "late": 2}]
    driver.commit()
    assert get(plane, "EWR,BOS", min_epoch=3)["isolation"] == "read_committed"
    assert get(plane, "EWR,BOS", isolation="read_uncommitted")["epoch"] == 3


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_min_epoch_waits_up_to_its_timeout(plane: Plane, driver: StateDriver, isolation: str) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    status, slug, _ = refused(plane, KEYS + "JFK,LAX", min_epoch=2, wait_seconds=0.1, isolation=isolation)
    assert (status, slug) == (409, "not-yet-committed")

    later = threading.Timer(0.5, lambda: driver.epoch((DELAYS, [route("JFK", "LAX", 2, 1.0)])))
    later.start()
    assert get(plane, "JFK,LAX", min_epoch=2, wait_seconds=20, isolation=isolation)["value"]["flights"] == 2
    later.join()


def test_older_state_is_read_from_its_snapshot(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]), (VISITS, [place("N1", "JFK", 1)]))
    driver.savepoint("first")
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 1.0)]), (VISITS, [place("N1", "LAX", 2), place("N1", "JFK")]))
    driver.epoch((DELAYS, [route("JFK", "LAX")]))
    assert [get(plane, "JFK,LAX", epoch=number)["value"]["flights"] for number in (1, 2)] == [1, 2]
    assert get(plane, "JFK,LAX", savepoint="first")["epoch"] == 1
    assert refused(plane, KEYS + "JFK,LAX", epoch=3)[1] == "key-not-found"
    visits = "/v1/applications/flights/state/visits.places/keys/"
    assert plane.get(visits + "N1", epoch=1)["entries"] == [{"airport": "JFK", "late": 1}]
    assert plane.get(visits + "N1", epoch=2)["entries"] == [{"airport": "LAX", "late": 2}]
    assert plane.get(visits + "N1,LAX", epoch=2)["value"] == {"late": 2}
    assert refused(plane, visits + "N1,JFK", epoch=2)[1] == "key-not-found"
    answer = plane.post(
        "/v1/applications/flights/state/delays/lookup", 200, keys=[route("JFK", "LAX"), route("no", "no")], epoch=2
    )
    assert (answer["epoch"], answer["values"]) == (2, [{"flights": 2, "worst": 1.0}, None])


def test_expired_snapshot_is_refused(plane: Plane) -> None:
    plane.application(configuration={"retained_epochs": 2})
    driver = StateDriver(plane)
    for number in range(4):
        driver.epoch((DELAYS, [route("JFK", "LAX", number, 1.0)]))
    assert refused(plane, KEYS + "JFK,LAX", epoch=1)[:2] == (410, "snapshot-expired")
    assert get(plane, "JFK,LAX", epoch=4)["value"]["flights"] == 3


def test_batch_is_read_from_one_epoch_in_request_order(plane: Plane, driver: StateDriver) -> None:
    names = [f"A{number}" for number in range(2500)]
    path = "/v1/applications/flights/state/delays/lookup"
    done = threading.Event()
    seen: list[tuple[int, set[int]]] = []

    def read() -> None:
        with plane.as_bearer(plane.token("viewer")) as client:
            while not done.is_set():
                answer = client.post(path, json={"keys": [route(name, "X") for name in names]})
                if answer.status_code == 200:
                    seen.append((answer.json()["epoch"], {value["flights"] for value in answer.json()["values"]}))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 8):
        driver.epoch((DELAYS, [route(name, "X", number, 0.5) for name in names]))
    answer = plane.post(path, 200, keys=[route("none", "X"), route("A7", "X"), route("A7", "X")], min_epoch=7)
    done.set()
    reader.join()
    assert answer == {
        "table": "delays",
        "branch": driver.driver.point.branch,
        "epoch": 7,
        "isolation": "read_committed",
        "values": [None, {"flights": 7, "worst": 0.5}, {"flights": 7, "worst": 0.5}],
    }
    assert seen and all(flights == {epoch} for epoch, flights in seen)
    assert plane.post(path, 200, keys=[])["values"] == []


WRONG_KEYS = [
    ({"origin": "JFK"}, "destination missing"),
    ({"origin": "JFK", "destination": "LAX", "x": 1}, "x unknown"),
    ({"origin": "JFK", "destination": 7}, "'destination' (string) takes a string, not 7"),
]
INVALID_BATCHES = [
    {"keys": [{}] * 10_001},
    {"keys": [], "unknown": 1},
    {"keys": ["JFK"]},
    {},
    {"keys": [], "epoch": -1},
]


def test_invalid_batch_is_refused_and_names_the_invalid_key(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    get(plane, "JFK,LAX", min_epoch=1)
    path = "/v1/applications/flights/state/delays/lookup"
    for key, message in WRONG_KEYS:
        answer = plane.client.post(path, json={"keys": [route("JFK", "LAX"), key]})
        assert answer.status_code == 422 and answer.json()["type"].endswith(":invalid-key"), key
        assert message in answer.json()["detail"], key
    for body in INVALID_BATCHES:
        assert plane.client.post(path, json=body).status_code == 422, body


def test_unchanged_value_is_not_sent_again(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    get(plane, "JFK,LAX", min_epoch=1)
    tag = plane.client.get(KEYS + "JFK,LAX").headers["etag"]
    driver.epoch((DELAYS, [route("LGA", "ATL", 1, 1.0)]))
    get(plane, "LGA,ATL", min_epoch=2)
    same = plane.client.get(KEYS + "JFK,LAX", headers={"If-None-Match": f'"other", {tag}'})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert same.headers["epochal-epoch"].endswith("/2")
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 1.0)]))
    get(plane, "JFK,LAX", min_epoch=3)
    changed = plane.client.get(KEYS + "JFK,LAX", headers={"If-None-Match": tag})
    assert changed.status_code == 200 and changed.headers["etag"] != tag
