"""Differences between snapshots over a real socket: along a branch, across a fork, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epochal.cli.state_view import key_groups_view
from epochal.client import Client
from epochal.snapshots.lineage import LONGEST_ROUTE
from epochal.state.table import StateTable
from tests.service.lookups import DELAYS, HIDDEN, VISITS, StateDriver, columns, place, refused, route

if TYPE_CHECKING:
    from tests.service.conftest import Plane

SNAPSHOTS = "/v1/applications/flights/snapshots/"


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    """Epoch 1: three routes; 2: one changed, deleted, added and rewritten unchanged; 3: places and a hidden table."""
    plane.application()
    driver = StateDriver(plane)
    driver.epoch((DELAYS, [route("A", "B", 1, 0.5), route("C", "D", 2, None), route("E", "F", 3, 1.5)]))
    driver.epoch((DELAYS, [route("A", "B", 9, 0.5), route("C", "D"), route("G", "H", 4, 1.0), route("E", "F", 3, 1.5)]))
    driver.epoch((VISITS, [place("N1", "JFK", 1), place("N1", "LAX", 2)]), (HIDDEN, [{"k": 1, "v": 1}]))
    return driver


def counts(answer: Any) -> dict[str, tuple[int, int, int]]:
    return {table["table"]: (table["added"], table["changed"], table["deleted"]) for table in answer["tables"]}


def test_a_diff_of_neighbours_counts_rows_and_lists_slices(plane: Plane, driver: StateDriver) -> None:
    answer = plane.get(SNAPSHOTS + "1/diff", to="2")
    branch = driver.driver.point.branch
    assert (answer["from"]["epoch"], answer["to"]["epoch"]) == (1, 2)
    assert answer["ancestor"] == {"branch": branch, "epoch": 1}
    assert counts(answer) == {"delays": (1, 1, 1), "hidden": (0, 0, 0), "visits.places": (0, 0, 0)}
    assert answer["between"]["from"] == {"epochs": 0, "slices": {}, "changes": []}
    assert answer["between"]["to"] == {
        "epochs": 1,
        "slices": {"flights": {"start": {"files": 1}, "end": {"files": 2}, "rows": 3, "epochs": 1}},
        "changes": [],
    }
    assert (answer["code"], answer["parameters"]) == ("same", [])
    assert answer["tables"][0]["compared"] == ["flights", "worst"]


def test_key_groups_have_the_rows_and_bytes_of_the_files(plane: Plane, driver: StateDriver) -> None:
    answer = plane.get(SNAPSHOTS + "2/key-groups/delays")
    assert (answer["table"], answer["epoch"], answer["files"] == answer["files_read"]) == ("delays", 2, True)
    assert len(answer["rows"]) == len(answer["bytes"]) == 128
    assert sum(answer["rows"]) == 3 + 4  # with the deleted and the replaced rows
    assert [rows > 0 for rows in answer["rows"]] == [size > 0 for size in answer["bytes"]]
    assert sum(plane.get(SNAPSHOTS + "1/key-groups/delays")["rows"]) == 3
    assert sum(plane.get(SNAPSHOTS + "head/key-groups/hidden")["rows"]) == 1  # no row is shown
    with Client(plane.settings.url, token=plane.admin_token) as client:
        sizes = client.application("flights").snapshots.key_groups("head", "delays")
        assert sizes.rows == answer["rows"] and key_groups_view(sizes, 10)
    for path in ("head/key-groups/unknown", "77/key-groups/delays"):
        assert plane.client.get(SNAPSHOTS + path).status_code == 404
    assert plane.as_bearer(None).get(SNAPSHOTS + "head/key-groups/delays").status_code == 401


ROWS = [
    {
        "kind": "changed",
        "key": {"origin": "A", "destination": "B"},
        "old": {"flights": 1, "worst": 0.5},
        "new": {"flights": 9, "worst": 0.5},
    },
    {
        "kind": "deleted",
        "key": {"origin": "C", "destination": "D"},
        "old": {"flights": 2, "worst": None},
        "new": None,
    },
    {
        "kind": "added",
        "key": {"origin": "G", "destination": "H"},
        "old": None,
        "new": {"flights": 4, "worst": 1.0},
    },
]


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
def test_different_rows_are_listed_in_pages(plane: Plane, driver: StateDriver, limit: int) -> None:
    items: list[Any] = []
    cursor = None
    while True:
        query = {"to": "head", "limit": limit} | ({"cursor": cursor} if cursor else {})
        answer = plane.get(SNAPSHOTS + "1/diff/delays", **query)
        items += answer["items"]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
        assert len(answer["items"]) == limit
    assert items == ROWS
    assert (answer["from"]["epoch"], answer["to"]["epoch"]) == (1, 3)


def test_a_diff_to_an_older_snapshot_is_reversed(plane: Plane, driver: StateDriver) -> None:
    answer = plane.get(SNAPSHOTS + "3/diff", to="1")
    assert counts(answer) == {"delays": (1, 1, 1), "hidden": (0, 0, 1), "visits.places": (0, 0, 2)}
    assert (answer["between"]["from"]["epochs"], answer["between"]["to"]["epochs"]) == (2, 0)


def test_a_diff_across_a_fork_accepts_names(plane: Plane, driver: StateDriver) -> None:
    driver.savepoint("good")
    plane.post(
        "/v1/applications/flights/fork", 201, name="again", epoch=1, parameters={"out": "/data/again", "limit": 3}
    )
    fork = StateDriver(plane, "again")
    number = fork.epoch((DELAYS, [route("A", "B", 9, 0.5), route("X", "Y", 1, None)]))
    answer = plane.get(SNAPSHOTS + "good/diff", to=f"again:{number}")
    assert answer["from"]["application"] == "flights"
    assert answer["to"]["application"] == "again"
    assert answer["ancestor"]["epoch"] == 1
    assert counts(answer) == {"delays": (2, 0, 1), "hidden": (0, 0, 1), "visits.places": (0, 0, 2)}
    assert (answer["between"]["from"]["epochs"], answer["between"]["to"]["epochs"]) == (2, 1)
    rows = plane.get(SNAPSHOTS + "good/diff/delays", to="again:head")["items"]
    assert [(row["kind"], row["key"]["origin"]) for row in rows] == [("added", "C"), ("deleted", "G"), ("added", "X")]


def test_a_schema_that_evolved_is_compared_by_common_columns(plane: Plane, driver: StateDriver) -> None:
    evolved = StateTable.model_validate({**DELAYS.model_dump(), "value": columns("flights bigint, mean double")})
    driver.tables = (evolved, VISITS)
    driver.epoch((evolved, [route("A", "B") | {"flights": 10, "mean": 1.0}]))
    delays, hidden, visits = plane.get(SNAPSHOTS + "3/diff", to="4")["tables"]
    assert (delays["added"], delays["changed"], delays["deleted"]) == (0, 1, 0)
    assert (delays["compared"], delays["not_compared"]) == (["flights"], ["mean", "worst"])
    assert "mean, worst" in delays["note"]
    assert (hidden["deleted"], "not declared at" in hidden["note"]) == (1, True)
    assert visits["note"] is None
    (row,) = plane.get(SNAPSHOTS + "3/diff/delays", to="4")["items"]
    assert (row["old"], row["new"]) == ({"flights": 9, "worst": 0.5}, {"flights": 10, "mean": 1.0})


def test_a_diff_of_distant_snapshots_omits_the_route(
    plane: Plane, driver: StateDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LONGEST_ROUTE > 1
    monkeypatch.setattr("epochal.snapshots.lineage.LONGEST_ROUTE", 1)
    answer = plane.get(SNAPSHOTS + "1/diff", to="3")
    assert (answer["between"], answer["ancestor"]) == (None, None)
    assert counts(answer) == {"delays": (1, 1, 1), "hidden": (1, 0, 0), "visits.places": (2, 0, 0)}


REFUSED = [
    ("1/diff", 422, "invalid-request"),
    ("1/diff?to=99", 404, "not-found"),
    ("99/diff?to=1", 404, "not-found"),
    ("1/diff?to=nothing", 404, "not-found"),
    ("1/diff?to=unknown:1", 404, "not-found"),
    ("1/diff?to=-1", 422, "invalid-input"),
    ("1/diff?to=..%2F", 422, "invalid-input"),
    ("1/diff?to=other:1", 422, "invalid-input"),
    ("1/diff/nothing?to=2", 404, "not-found"),
    ("1/diff/hidden?to=2", 404, "not-found"),
    ("1/diff/delays?to=2&cursor=x", 400, "invalid-cursor"),
]


def test_invalid_diffs_are_refused(plane: Plane, driver: StateDriver) -> None:
    plane.application("other")
    StateDriver(plane, "other").epoch((DELAYS, [route("A", "B", 1, None)]))
    for path, status, slug in REFUSED:
        assert refused(plane, SNAPSHOTS + path)[:2] == (status, slug), path
    with plane.as_bearer(None) as client:
        assert client.get(SNAPSHOTS + "1/diff", params={"to": "2"}).status_code == 401
