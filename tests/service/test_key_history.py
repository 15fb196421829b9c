"""History, blame, scans and reads of older state over a real socket, from real snapshots."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from epochal.service.catalog.models import Branch, Epoch, SnapshotTag
from epochal.service.catalog.types import now
from tests.service.lookups import DELAYS, KEYS, VISITS, StateDriver, get, place, refused, route

if TYPE_CHECKING:
    from tests.service.conftest import Plane

STATE = "/v1/applications/flights/state/"
KEY = "JFK,LAX"


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    return StateDriver(plane)


def pages(plane: Plane, path: str, limit: int, **query: Any) -> list[Any]:
    items: list[Any] = []
    cursor = None
    while True:
        answer = plane.get(path, limit=limit, **query, **({"cursor": cursor} if cursor else {}))
        assert len(answer["items"]) <= limit
        items += answer["items"]
        cursor = answer["next_cursor"]
        if cursor is None:
            return items


def committed_at(plane: Plane, epoch: int) -> str:
    return str(plane.get(f"/v1/applications/flights/epochs/{epoch}")["committed_at"])


def test_history_lists_each_change_with_time_and_both_values(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    driver.epoch((DELAYS, [route("JFK", "SFO", 7, 0.0)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, None)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, None)]))  # equal values are no change
    driver.epoch((DELAYS, [route("JFK", "LAX")]))
    branch = driver.driver.point.branch
    values: list[Any] = [{"flights": 1, "worst": 2.5}, {"flights": 2, "worst": None}, None]
    expected = [
        {
            "branch": branch,
            "epoch": epoch,
            "application": "flights",
            "at": committed_at(plane, epoch),
            "key": {"origin": "JFK", "destination": "LAX"},
            "old": old,
            "new": new,
            "expired": False,
        }
        for epoch, old, new in ((5, values[1], None), (3, values[0], values[1]), (1, None, values[0]))
    ]
    answer = plane.get(STATE + "delays/history", key=KEY)
    assert answer == {
        "table": "delays",
        "key": {"origin": "JFK", "destination": "LAX"},
        "branch": branch,
        "epoch": 5,
        "items": expected,
        "next_cursor": None,
        "known_since": None,
        "note": None,
    }
    for limit in (1, 2):
        assert pages(plane, STATE + "delays/history", limit, key=KEY) == expected
    assert plane.get(STATE + "delays/history", key=KEY, epoch=4)["items"] == expected[1:]
    assert plane.get(STATE + "delays/history", key="no,where")["items"] == []


def test_history_of_a_map_key_covers_all_its_entries(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((VISITS, [place("N1", "JFK", 1), place("N1", "LAX", 1), place("N2", "JFK", 3)]))
    driver.epoch((VISITS, [place("N1", "LAX")]))
    found = [
        (item["epoch"], item["key"]["airport"], item["old"], item["new"])
        for item in pages(plane, STATE + "visits.places/history", 1, key="N1")
    ]
    assert found == [(2, "LAX", {"late": 1}, None), (1, "JFK", None, {"late": 1}), (1, "LAX", None, {"late": 1})]


def test_blame_names_the_epoch_its_code_and_its_slices(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 2.5), route("JFK", "SFO", 1, 1.0)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 2.5), route("JFK", "SFO", 2, 1.0)]))
    answer = plane.get(STATE + "delays/blame", key=KEY)
    assert (answer["epoch"], answer["change"]["epoch"]) == (3, 2)
    assert answer["change"]["old"] == {"flights": 1, "worst": 2.5}
    assert answer["change"]["new"] == {"flights": 2, "worst": 2.5}
    assert answer["change"]["at"] == committed_at(plane, 2)
    assert (answer["version"], answer["filename"]) == (1, "flights.py")
    assert answer["parameters"] == {"threshold": 15}
    assert answer["slices"] == {
        "flights": {"start": {"files": 1}, "end": {"files": 2}, "rows": 3, "detail": {"files": ["2.json"]}}
    }
    assert plane.get(STATE + "delays/blame", key=KEY, epoch=1)["change"]["epoch"] == 1
    assert refused(plane, STATE + "delays/blame", key="no,where")[:2] == (404, "key-not-found")


def test_history_continues_in_the_parent_of_a_fork(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 2.5)]))
    fork = {"name": "again", "epoch": 1, "parameters": {"out": "/data/again"}, "start": True}
    plane.post("/v1/applications/flights/fork", 201, **fork)
    other = StateDriver(plane, "again")
    number = other.epoch((DELAYS, [route("JFK", "LAX", 9, 2.5)]))
    items = plane.get("/v1/applications/again/state/delays/history", key=KEY)["items"]
    assert [(item["application"], item["epoch"], item["new"]["flights"]) for item in items] == [
        ("again", number, 9),
        ("flights", 1, 1),
    ]


def test_state_is_read_as_of_a_time(plane: Plane, driver: StateDriver) -> None:
    for number in (1, 2, 3):
        driver.epoch((DELAYS, [route("JFK", "LAX", number, None)]))
        time.sleep(0.01)
    for number in (1, 2, 3):
        moment = committed_at(plane, number)
        assert get(plane, KEY, at=moment)["epoch"] == number
        answer = plane.post(STATE + "delays/lookup", 200, keys=[route("JFK", "LAX")], at=moment)
        assert answer["values"] == [{"flights": number, "worst": None}]
        assert plane.get(STATE + "delays/scan", at=moment)["items"][0]["value"]["flights"] == number
    before = (datetime.fromisoformat(committed_at(plane, 1)) - timedelta(milliseconds=1)).isoformat()
    status, slug, detail = refused(plane, KEYS + KEY, at=before)
    assert (status, slug) == (404, "not-found")
    assert "its first epoch was committed at" in detail
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert refused(plane, KEYS + KEY, at=ahead)[:2] == (422, "invalid-input")
    assert refused(plane, KEYS + KEY, at="yesterday")[:2] == (422, "invalid-request")
    assert refused(plane, KEYS + KEY, at="2013-01-31T05:15:00")[:2] == (422, "invalid-request")
    assert refused(plane, KEYS + KEY, at=ahead, epoch=1)[:2] == (422, "invalid-input")


def test_state_is_read_at_a_tag(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, None)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, None)]))
    tag(plane, driver, "good", 1)
    assert get(plane, KEY, tag="good")["value"]["flights"] == 1
    assert refused(plane, KEYS + KEY, tag="bad")[:2] == (404, "not-found")


def tag(plane: Plane, driver: StateDriver, name: str, epoch: int) -> None:
    branch = driver.driver.point.branch
    with plane.control.database.writing() as session:
        application = session.get_one(Branch, branch).application
        session.add(
            SnapshotTag(
                application=application, name=name, branch=branch, epoch=epoch, created_at=now(), created_by="test"
            )
        )


def collect(plane: Plane, driver: StateDriver, epoch: int) -> None:
    with plane.control.database.writing() as session:
        session.execute(update(Epoch).where(Epoch.epoch == epoch).values(collected_at=now()))


def test_collected_snapshot_has_expired(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, None)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, None)]))
    collect(plane, driver, 1)
    for path in (KEYS + KEY, STATE + "delays/scan", STATE + f"delays/history?key={KEY}"):
        status, slug, detail = refused(plane, path + ("&" if "?" in path else "?") + "epoch=1")
        assert (status, slug) == (410, "snapshot-expired")
        assert "was collected" in detail


def test_snapshot_that_expires_during_a_read_is_reported(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("AAA", "BBB", 1, 77.125)]))
    driver.epoch((DELAYS, [route("AAA", "BBB", 2, None)]))
    manifest = driver.store.read_manifest(plane.control.snapshots.resolve("flights", epoch=1))
    for delta in manifest.deltas:
        driver.store.delete(delta.file.path)
    assert refused(plane, KEYS + "AAA,BBB", epoch=1)[:2] == (500, "file-missing")
    found = plane.client.get(STATE + "delays/history", params={"key": "AAA,BBB"})
    assert found.status_code == 500
    reference = plane.control.snapshots.resolve("flights", epoch=1)
    collect(plane, driver, 1)
    plane.control.snapshots.resolve = lambda *_, **__: reference  # type: ignore[method-assign]
    assert refused(plane, KEYS + "AAA,BBB", epoch=1)[:2] == (410, "snapshot-expired")


ROUTES = [("LAX", "JFK"), ("JFK", "SFO"), ("JFK", "LAX"), ("JF", "K"), ("JFK", "L,*"), ("Å", "ß")]


@pytest.fixture
def routes(plane: Plane, driver: StateDriver) -> StateDriver:
    driver.epoch((DELAYS, [route(*key, number, None) for number, key in enumerate(ROUTES)]))
    driver.epoch((DELAYS, [route("JFK", "SFO"), route("JFK", "LAX", 99, 1.0)]))
    get(plane, KEY, min_epoch=2)
    return driver


SCANS: dict[str, list[tuple[str, str]]] = {
    "": [("JF", "K"), ("JFK", "L,*"), ("JFK", "LAX"), ("LAX", "JFK"), ("Å", "ß")],
    "JFK": [("JFK", "L,*"), ("JFK", "LAX")],
    "JF*": [("JF", "K"), ("JFK", "L,*"), ("JFK", "LAX")],
    "JFK,L*": [("JFK", "L,*"), ("JFK", "LAX")],
    "JFK,L%2C%2A": [("JFK", "L,*")],
    "%C3%85": [("Å", "ß")],
    "X": [],
}


@pytest.mark.parametrize("when", [{}, {"epoch": 2}, {"isolation": "read_uncommitted"}])
def test_scans_return_keys_in_order(plane: Plane, routes: StateDriver, when: dict[str, Any]) -> None:
    for prefix, expected in SCANS.items():
        for limit in (1, 2, 500):
            rows = pages(plane, STATE + "delays/scan", limit, prefix=prefix, **when)
            assert [tuple(row["key"].values()) for row in rows] == expected, (prefix, limit)
        for row in rows:
            number = 99 if tuple(row["key"].values()) == ("JFK", "LAX") else ROUTES.index(tuple(row["key"].values()))
            assert row["value"]["flights"] == number, prefix


def test_all_pages_of_a_scan_read_one_epoch(plane: Plane, routes: StateDriver) -> None:
    first = plane.get(STATE + "delays/scan", limit=2)
    routes.epoch((DELAYS, [route(*key) for key in ROUTES if key != ("JFK", "LAX")] + [route("JFK", "LAX", 1, None)]))
    get(plane, KEY, min_epoch=3)
    second = plane.get(STATE + "delays/scan", limit=9, cursor=first["next_cursor"])
    assert (first["epoch"], second["epoch"]) == (2, 2)
    assert [row["value"]["flights"] for row in first["items"] + second["items"]] == [3, 4, 99, 0, 5]
    assert len(plane.get(STATE + "delays/scan")["items"]) == 1


def test_uncommitted_scan_includes_prepared_epochs(plane: Plane, routes: StateDriver) -> None:
    routes.prepare((DELAYS, [route("AAA", "B", 1, None)] + [route(*key) for key in ROUTES[3:]]))
    query: dict[str, Any] = {"isolation": "read_uncommitted"}
    for limit in (1, 500):
        rows = pages(plane, STATE + "delays/scan", limit, **query)
        assert [tuple(row["key"].values()) for row in rows] == [("AAA", "B"), ("JFK", "LAX"), ("LAX", "JFK")]
    assert len(plane.get(STATE + "delays/scan")["items"]) == 5


INVALID_REQUESTS = [
    (STATE + "delays/scan?prefix=a,b,c", 422, "invalid-key"),
    (STATE + "types/scan", 404, "not-found"),
    (STATE + "hidden/scan", 404, "not-found"),
    (STATE + "hidden/history?key=1", 404, "not-found"),
    (STATE + "hidden/blame?key=1&epoch=1", 404, "not-found"),
    (STATE + "nothing/history?key=1", 404, "not-found"),
    (STATE + "delays/history?key=JFK", 422, "invalid-key"),
    (STATE + "delays/history", 422, "invalid-request"),
    (STATE + "delays/history?key=JFK,LAX&cursor=x", 400, "invalid-cursor"),
    (STATE + "delays/scan?cursor=WyJhIiwgMSwgIioiXQ", 400, "invalid-cursor"),
    (STATE + "delays/scan?cursor=WyJhIiwgMSwgIllRPT0iXQ", 400, "invalid-cursor"),
    (STATE + "delays/history?key=JFK,LAX&cursor=WyJhIiwgMSwgMCwgIiIsIDBd", 400, "invalid-cursor"),
    (STATE + "delays/history?key=JFK,LAX&epoch=99", 404, "not-found"),
    ("/v1/applications/missing/state/delays/history?key=JFK,LAX", 404, "not-found"),
    ("/v1/applications/missing/state/delays/scan", 404, "not-found"),
]


def test_invalid_requests_are_refused(plane: Plane, routes: StateDriver) -> None:
    for path, status, slug in INVALID_REQUESTS:
        assert refused(plane, path)[:2] == (status, slug), path
