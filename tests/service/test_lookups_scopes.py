"""State without a key over a real socket: lists of subtasks, and what all subtasks hold alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epochal import Client
from epochal.cli.main import main
from epochal.state.table import StateKind, StateScope
from tests.service.bundles import exported, imported
from tests.service.lookups import StateDriver, refused, table

if TYPE_CHECKING:
    from tests.service.conftest import Plane

WAITING = table(
    "batches.waiting", StateKind.LIST, "_group int", "id bigint", sub_key="_index bigint", scope=StateScope.OPERATOR
)
LIMITS = table(
    "alerts.limits", StateKind.MAP, "_group int", "most int", sub_key="kind string", scope=StateScope.BROADCAST
)
LATEST = table("alerts.latest", StateKind.VALUE, "_group int", "at bigint", scope=StateScope.BROADCAST)
STATE = "/v1/applications/flights/state/"


def element(group: int, index: int, id: int | None = None) -> dict[str, Any]:
    return {"_group": group, "_index": index} | ({} if id is None else {"id": id})


def limit(kind: str, most: int | None = None) -> dict[str, Any]:
    return {"_group": 0, "kind": kind} | ({} if most is None else {"most": most})


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    driver = StateDriver(plane, tables=(WAITING, LIMITS, LATEST))
    driver.epoch(
        (WAITING, [element(0, 0, 10), element(1, 0, 20), element(2, 1, 11), element(0, 4, 12)]),
        (LIMITS, [limit("gin", 50), limit("tea", 5)]),
        (LATEST, [{"_group": 0, "at": 3}]),
    )
    driver.epoch((WAITING, [element(2, 1), element(3, 0, 21)]), (LIMITS, [limit("gin", 60), limit("tea")]))
    plane.get(STATE + "alerts.latest/keys/0", min_epoch=2)
    return driver


@pytest.mark.parametrize("when", [{}, {"epoch": 2}, {"isolation": "read_uncommitted"}])
def test_all_elements_of_the_subtasks_are_listed(plane: Plane, driver: StateDriver, when: dict[str, Any]) -> None:
    rows = plane.get(STATE + "batches.waiting/scan", **when)["items"]
    assert [(*row["key"].values(), row["value"]["id"]) for row in rows] == [
        (0, 0, 10),
        (0, 4, 12),
        (1, 0, 20),
        (3, 0, 21),
    ]
    assert plane.get(STATE + "batches.waiting/keys/0,4", **when)["value"] == {"id": 12}
    entries = plane.get(STATE + "batches.waiting/keys/0", **when)["entries"]
    assert entries == [{"_index": 0, "id": 10}, {"_index": 4, "id": 12}]
    assert refused(plane, STATE + "batches.waiting/keys/999,0", **when)[1] == "key-not-found"
    assert refused(plane, STATE + "batches.waiting/keys/%00,0", **when)[1] == "key-not-found"


@pytest.mark.parametrize("when", [{}, {"epoch": 2}, {"isolation": "read_uncommitted"}])
def test_broadcast_state_is_looked_up_by_its_own_key(plane: Plane, driver: StateDriver, when: dict[str, Any]) -> None:
    found = plane.get(STATE + "alerts.limits/keys/gin", **when)
    assert (found["key"], found["value"]) == ({"_group": 0, "kind": "gin"}, {"most": 60})
    assert plane.get(STATE + "alerts.limits/keys/0,gin", **when)["value"] == {"most": 60}
    assert refused(plane, STATE + "alerts.limits/keys/tea", **when)[1] == "key-not-found"
    assert plane.get(STATE + "alerts.latest/keys/0", **when)["value"] == {"at": 3}
    for prefix, kinds in (("", ["gin"]), ("g*", ["gin"]), ("gin", ["gin"]), ("t*", [])):
        rows = plane.get(STATE + "alerts.limits/scan", prefix=prefix, **when)["items"]
        assert [row["key"]["kind"] for row in rows] == kinds
    keys = [{"kind": "gin"}, {"_group": 0, "kind": "tea"}]
    answer = plane.client.post(STATE + "alerts.limits/lookup", json={"keys": keys, **when})
    assert answer.json()["values"] == [{"most": 60}, None]


def test_its_past_and_its_differences(plane: Plane, driver: StateDriver) -> None:
    history = plane.get(STATE + "alerts.limits/history", key="gin")["items"]
    assert [(item["epoch"], item["new"]) for item in history] == [(2, {"most": 60}), (1, {"most": 50})]
    assert plane.get(STATE + "batches.waiting/keys/2,1", epoch=1)["value"] == {"id": 11}
    assert plane.get(STATE + "batches.waiting/history", key="2,1")["items"][0]["new"] is None
    differences = plane.get("/v1/applications/flights/snapshots/1/diff", to="2")["tables"]
    counted = {each["table"]: (each["added"], each["changed"], each["deleted"]) for each in differences}
    assert counted == {"alerts.latest": (0, 0, 0), "alerts.limits": (0, 1, 1), "batches.waiting": (1, 0, 1)}


def test_clients_and_people_see_the_scope(
    plane: Plane, driver: StateDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = plane.settings.admin_token_file.read_text().strip()
    with Client(plane.settings.url, token) as client:
        application = client.application("flights")
        scopes = {each.table: each.scope for each in application.state_tables()}
        assert scopes == {"alerts.latest": "broadcast", "alerts.limits": "broadcast", "batches.waiting": "operator"}
        assert application.state("alerts.limits").get("gin").value == {"most": 60}
        assert [row.value["id"] for row in application.state("batches.waiting").scan_all()] == [10, 12, 20, 21]
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", token)
    for command, shown in (
        (["get", "flights", "alerts.limits", "gin"], "60"),
        (["scan", "flights", "batches.waiting"], "21"),
        (["show", "flights"], "operator list"),
        (["show", "flights"], "broadcast map"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(command)
        assert shown in capsys.readouterr().out


def test_it_moves_with_its_application(plane: Plane, driver: StateDriver) -> None:
    done = imported(plane, exported(plane, epoch=1), name="copy")
    assert done["state"] == "succeeded", done["error"]
    copy = "/v1/applications/copy/state/"
    assert plane.get(copy + "alerts.limits/keys/gin")["value"] == {"most": 50}
    rows = plane.get(copy + "batches.waiting/scan")["items"]
    assert [row["value"]["id"] for row in rows] == [10, 12, 20, 11]
    assert {table["table"]: table["scope"] for table in plane.get(copy[:-1])["items"]}["batches.waiting"] == "operator"
