"""Look-ups of every kind and type of state, lists of tables, and look-ups after stop, restart, fork and damage."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.cli.main import main
from epochal.state.table import Quotient, StateKind
from tests.service.lookups import (
    DELAYS,
    HIDDEN,
    KEYS,
    TYPES,
    VISITS,
    StateDriver,
    get,
    place,
    refused,
    route,
    table,
)

if TYPE_CHECKING:
    from tests.service.conftest import Plane


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    return StateDriver(plane)


def test_map_state_is_read_completely_or_by_sub_key(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((VISITS, [place("N1", "JFK", 1), place("N1", "BOS", 2), place("N10", "LAX", 3)]))
    visits = "/v1/applications/flights/state/visits.places/keys/"
    whole = plane.get(visits + "N1", min_epoch=1)
    assert whole["key"] == {"tail": "N1"}
    assert whole["entries"] == [{"airport": "BOS", "late": 2}, {"airport": "JFK", "late": 1}]
    assert "value" not in whole
    assert plane.get(visits + "N1,JFK")["value"] == {"late": 1}
    assert refused(plane, visits + "N2")[1] == "key-not-found"


def test_every_type_has_its_json_form(plane: Plane) -> None:
    plane.application()
    driver = StateDriver(plane, tables=(TYPES,))
    moment = datetime(2013, 1, 31, 5, 15, tzinfo=UTC)
    key = {"i": -3, "b": True, "d": moment.date(), "m": Decimal("-1.50"), "t": moment, "y": b"\x00,\xff"}
    value = {"n": moment.replace(tzinfo=None), "f": float("inf"), "s": 7}
    # Values get other names than key columns, since a pipeline cannot declare one name in both.
    renamed = TYPES.model_copy(
        update={"value": tuple(column.model_copy(update={"name": f"v_{column.name}"}) for column in TYPES.value)}
    )
    driver.tables = (renamed,)
    row = key | {f"v_{name}": item for name, item in (key | value).items() if name not in ("i", "b")}
    driver.epoch((renamed, [row, key | {"i": 4, "v_s": 1}]))
    path = "/v1/applications/flights/state/types/keys/"
    answer = plane.get(path + "-3,true,2013-01-31,-1.5,2013-01-31T06:15:00%2B01:00,ACz%2F", min_epoch=1)
    expected = {
        "v_d": "2013-01-31",
        "v_m": "-1.50",
        "v_t": "2013-01-31T05:15:00.000000Z",
        "v_n": "2013-01-31T05:15:00.000000",
        "v_y": "ACz/",
        "v_f": "Infinity",
        "v_s": 7,
    }
    assert answer["value"] == expected
    assert answer["key"] == {
        "i": -3,
        "b": True,
        "d": "2013-01-31",
        "m": "-1.50",
        "t": "2013-01-31T05:15:00.000000Z",
        "y": "ACz/",
    }
    batch = plane.post(
        "/v1/applications/flights/state/types/lookup", 200, keys=[answer["key"], answer["key"] | {"i": 4}]
    )
    assert batch["values"] == [expected, dict.fromkeys(expected) | {"v_s": 1}]
    status, slug, detail = refused(plane, path + "x,true,2013-01-31,-1.5,2013-01-31T05:15:00Z,AA==")
    assert (status, slug) == (422, "invalid-key") and "'i' (int)" in detail


def test_tables_are_listed_with_schema_rows_and_epoch(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0), route("LGA", "ATL", 1, 1.0)]), (HIDDEN, [{"k": 1, "v": 1}]))
    get(plane, "JFK,LAX", min_epoch=1)
    listed = {item["table"]: item for item in plane.get("/v1/applications/flights/state")["items"]}
    assert sorted(listed) == ["delays", "hidden", "visits.places"]
    assert listed["delays"] == {
        "table": "delays",
        "operator": "delays",
        "kind": "aggregate",
        "scope": "keyed",
        "key": [{"name": "origin", "type": "string"}, {"name": "destination", "type": "string"}],
        "sub_key": [],
        "value": [
            {"name": "flights", "type": "bigint", "internal": False},
            {"name": "worst", "type": "double", "internal": False},
        ],
        "queryable": True,
        "rows": 2,
        "branch": driver.driver.point.branch,
        "epoch": 1,
        "note": None,
    }
    assert (listed["visits.places"]["rows"], listed["hidden"]["rows"]) == (0, None)
    first = plane.get("/v1/applications/flights/state", limit=2)
    rest = plane.get("/v1/applications/flights/state", limit=2, cursor=first["next_cursor"])
    assert [item["table"] for item in first["items"] + rest["items"]] == sorted(listed)
    assert rest["next_cursor"] is None


def test_stopped_application_answers_after_a_restart_without_replicas(
    plane: Plane, driver: StateDriver, serve: Callable[..., Any]
) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    plane.post("/v1/applications/flights/stop")
    driver.driver.stop()
    assert plane.get("/v1/applications/flights")["state"] == "stopped"
    assert get(plane, "JFK,LAX", min_epoch=1)["value"]["flights"] == 1
    # A second control plane on the same catalog and store, without a replica: it reads the store only.
    from tests.service.conftest import free_port

    settings = plane.settings
    other = settings.model_copy(
        update={
            "data": settings.data / "other",
            "port": free_port(),
            "database": settings.database_url,
            "store": settings.store_url,
        }
    )
    with serve(other), httpx.Client(base_url=other.url, headers=plane.client.headers) as client:
        assert client.get(KEYS + "JFK,LAX").json()["value"]["flights"] == 1


def test_fork_has_the_parent_state_and_then_its_own(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 1.0)]))
    plane.post("/v1/applications/flights/fork", 201, name="other", epoch=1, parameters={"out": "/data/x"})
    fork_key = "/v1/applications/other/state/delays/keys/JFK,LAX"
    answer = plane.get(fork_key)
    assert (answer["value"]["flights"], answer["branch"], answer["epoch"]) == (1, driver.driver.point.branch, 1)
    fork = StateDriver(plane, "other")
    number = fork.epoch((DELAYS, [route("JFK", "LAX", 9, 1.0)]))
    answer = plane.get(fork_key, min_epoch=number)
    assert (answer["value"]["flights"], answer["branch"]) == (9, fork.driver.point.branch)
    assert get(plane, "JFK,LAX", min_epoch=2)["value"]["flights"] == 2


def test_damaged_snapshot_is_named_and_older_state_stays_readable(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    get(plane, "JFK,LAX", min_epoch=1)
    driver.prepare((DELAYS, [route("JFK", "LAX", 2, 1.0)]))
    assert driver.head is not None
    deltas = driver.store.read_manifest(driver.head).deltas
    (file,) = (delta.file for delta in deltas if delta.file.rows)
    path = Path(driver.store.location(file.path))
    original = path.read_bytes()
    path.write_bytes(original[:-3] + b"\x00\x00\x00")
    assert file.path in refused(plane, KEYS + "JFK,LAX", isolation="read_uncommitted")[2]
    driver.commit()
    assert get(plane, "JFK,LAX")["epoch"] == 1
    assert file.path in refused(plane, KEYS + "JFK,LAX", epoch=2)[2]
    path.write_bytes(original)
    assert get(plane, "JFK,LAX", min_epoch=2, wait_seconds=20)["value"]["flights"] == 2


def test_deleting_an_application_deletes_its_replicas(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    get(plane, "JFK,LAX", min_epoch=1)
    plane.post("/v1/applications/flights/stop")
    driver.driver.stop()
    assert plane.client.delete("/v1/applications/flights").status_code in (200, 204)
    deadline = time.monotonic() + 20
    while plane.client.get(KEYS + "JFK,LAX").status_code != 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_partial_columns_of_an_average_are_marked_internal(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.application()
    mean = Quotient(name="mean", dividend="mean_sum", divisor="mean_count")
    original = table("means", StateKind.AGGREGATE, "k int", "n bigint, mean_sum bigint, mean_count bigint")
    driver = StateDriver(plane, tables=(original.model_copy(update={"shown": (mean,)}),))
    for total in (7, 9):
        driver.epoch((original, [{"k": 1, "n": 2, "mean_sum": total, "mean_count": 2}]))
    keys = "/v1/applications/flights/state/means/keys/1"
    value = plane.get(keys, min_epoch=2)["value"]
    assert value == {"n": 2, "mean_sum": 9, "mean_count": 2, "mean": 4.5}
    (described,) = plane.get("/v1/applications/flights/state")["items"]
    internal = {column["name"]: column["internal"] for column in described["value"]}
    assert internal == {"n": False, "mean_sum": True, "mean_count": True, "mean": False}

    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.settings.admin_token_file.read_text().strip())
    for command in (
        ["get", "flights", "means", "1"],
        ["get", "flights", "means", "1", "--epoch", "2"],
        ["get", "flights", "means", "1", "--history"],
        ["get", "flights", "means", "1", "--blame"],
        ["scan", "flights", "means"],
        ["diff", "flights", "1", "2", "--table", "means"],
        ["show", "flights"],
    ):
        with pytest.raises(SystemExit, match="0"):
            main(command)
        shown = capsys.readouterr().out
        assert "mean" in shown.lower() and "mean_" not in shown.lower(), shown
    with pytest.raises(SystemExit, match="0"):
        main(["get", "flights", "means", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["value"] == value
