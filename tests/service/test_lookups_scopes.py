"""State without a key over a real socket: lists of subtasks, broadcast state, and partial state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from epochal import Client
from epochal.cli.main import main
from epochal.declarations.reconcile import reconciling_of
from epochal.state.table import ANY, SUM_OR_NULL, MergedColumns, StateKind, StateScope
from tests.service.bundles import exported, imported
from tests.service.lookups import StateDriver, columns, refused, table

if TYPE_CHECKING:
    from epochal.state.table import StateTable
    from tests.service.conftest import Plane

WAITING = table(
    "batches.waiting", StateKind.LIST, "_group int", "id bigint", sub_key="_index bigint", scope=StateScope.OPERATOR
)
LIMITS = table(
    "alerts.limits", StateKind.MAP, "_group int", "most int", sub_key="kind string", scope=StateScope.BROADCAST
)
LATEST = table("alerts.latest", StateKind.VALUE, "_group int", "at bigint", scope=StateScope.BROADCAST)
_SUMS = reconciling_of("sums", columns("n bigint, at bigint"), {"n": "sum", "at": "max"})
SUMS = table(
    "parts.sums",
    StateKind.MAP,
    "_group int",
    "n bigint, at bigint",
    sub_key="word string",
    scope=StateScope.PARTIAL,
    reconcile=_SUMS,
)
COUNT = table(
    "parts.count",
    StateKind.VALUE,
    "_group int",
    "n bigint",
    scope=StateScope.PARTIAL,
    reconcile=reconciling_of("count", columns("n bigint"), "count"),
)
BY_AUTHOR = COUNT.model_copy(update={"id": "parts.own", "reconcile": "program"})
STATE = "/v1/applications/flights/state/"


def element(group: int, index: int, id: int | None = None) -> dict[str, Any]:
    return {"_group": group, "_index": index} | ({} if id is None else {"id": id})


def limit(kind: str, most: int | None = None) -> dict[str, Any]:
    return {"_group": 0, "kind": kind} | ({} if most is None else {"most": most})


def part(instance: int, word: str, n: int, at: int) -> dict[str, Any]:
    return {"_group": instance, "word": word, "n": n, "at": at}


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    driver = StateDriver(plane, tables=(WAITING, LIMITS, LATEST, SUMS, COUNT, BY_AUTHOR))
    driver.epoch(
        (SUMS, [part(0, "gin", 1, 9), part(1, "gin", 2, 8), part(1, "tea", 5, 7)]),
        (COUNT, [{"_group": 0, "n": 1}, {"_group": 1, "n": 2}]),
        (BY_AUTHOR, [{"_group": 0, "n": 1}, {"_group": 1, "n": 2}]),
        (WAITING, [element(0, 0, 10), element(1, 0, 20), element(2, 1, 11), element(0, 4, 12)]),
        (LIMITS, [limit("gin", 50), limit("tea", 5)]),
        (LATEST, [{"_group": 0, "at": 3}]),
    )
    driver.epoch(
        (WAITING, [element(2, 1), element(3, 0, 21)]),
        (LIMITS, [limit("gin", 60), limit("tea")]),
        (SUMS, [part(0, "gin", 4, 6)]),
    )
    plane.get(STATE + "alerts.latest/keys/0", min_epoch=2)
    return driver


@pytest.mark.parametrize("when", [{}, {"epoch": 2}, {"isolation": "read_uncommitted"}])
def test_scan_lists_all_elements_of_all_subtasks(plane: Plane, driver: StateDriver, when: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("when", [{}, {"epoch": 2}, {"isolation": "read_uncommitted"}])
def test_partial_state_shows_its_instances_and_the_merged_value(
    plane: Plane, driver: StateDriver, when: dict[str, Any]
) -> None:
    found = plane.get(STATE + "parts.sums/keys/gin", **when)
    assert (found["key"], found["value"]) == ({"word": "gin"}, {"n": 6, "at": 8})
    assert found["instances"] == [
        {"instance": 0, "value": {"n": 4, "at": 6}},
        {"instance": 1, "value": {"n": 2, "at": 8}},
    ]
    assert "instances" not in plane.get(STATE + "parts.sums/keys/1,gin", **when)
    assert plane.get(STATE + "parts.sums/keys/1,tea", **when)["value"] == {"n": 5, "at": 7}
    assert refused(plane, STATE + "parts.sums/keys/ale", **when)[1] == "key-not-found"
    assert plane.get(STATE + "parts.count/keys", key="", **when)["value"] == {"n": 3}
    assert plane.get(STATE + "parts.count/keys/1", **when)["value"] == {"n": 2}
    own = plane.get(STATE + "parts.own/keys", key="", **when)
    assert (own["value"], [each["value"]["n"] for each in own["instances"]]) == (None, [1, 2])
    rows = plane.get(STATE + "parts.sums/scan", prefix="1", **when)["items"]
    assert [(*row["key"].values(), row["value"]["n"]) for row in rows] == [(1, "gin", 2), (1, "tea", 5)]

    def looked_up(table: str, *keys: dict[str, Any]) -> Any:
        return plane.client.post(f"{STATE}{table}/lookup", json={"keys": keys, **when}).json()

    together = looked_up("parts.sums", {"word": "gin"}, {"word": "ale"}, {"word": "tea"})["values"]
    assert together == [{"n": 6, "at": 8}, None, {"n": 5, "at": 7}]
    assert looked_up("parts.sums", {"_group": 0, "word": "gin"})["values"] == [{"n": 4, "at": 6}]
    assert looked_up("parts.count", {})["values"] == [{"n": 3}]
    assert "in all keys of a batch, or in none" in looked_up("parts.count", {}, {"_group": 0})["detail"]
    assert "only its program can merge" in looked_up("parts.own", {})["detail"]


def declared_by_program(id: str, function: str) -> StateTable:
    """Partial state as a program declares it."""
    merged = (MergedColumns(function=function, columns={"value": "count"}),)
    sub_key, scope = "key string", StateScope.PARTIAL
    return table(id, StateKind.MAP, "_group int", "count bigint", sub_key=sub_key, scope=scope, reconcile=merged)


def test_partial_state_of_a_program_is_merged_by_built_in_functions(plane: Plane) -> None:
    """Null means that the sum of an instance, or of all instances, exceeds 64 bits."""
    plane.application()
    votes, limits = declared_by_program("votes", SUM_OR_NULL), declared_by_program("limits", ANY)
    driver = StateDriver(plane, tables=(votes, limits))
    parts = ((0, "a", 2), (1, "a", 3), (0, "b", 2**62), (1, "b", 2**62), (0, "c", None), (1, "c", 1), (1, "d", 5))
    rows = [{"_group": instance, "key": key, "count": count} for instance, key, count in parts]
    driver.epoch((votes, rows), (limits, [{"_group": instance, "key": "a", "count": 9} for instance in range(2)]))
    found = {key: plane.get(f"{STATE}votes/keys/{key}", min_epoch=1) for key in "abcd"}
    assert {key: answer["value"]["count"] for key, answer in found.items()} == {"a": 5, "b": None, "c": None, "d": 5}
    assert [each["value"]["count"] for each in found["c"]["instances"]] == [None, 1]
    assert plane.get(f"{STATE}limits/keys/a")["value"] == {"count": 9}
    batch = plane.client.post(f"{STATE}votes/lookup", json={"keys": [{"key": key} for key in "dxca"]}).json()
    assert batch["values"] == [{"count": 5}, None, {"count": None}, {"count": 5}]


def test_state_without_a_key_has_history_and_differences(plane: Plane, driver: StateDriver) -> None:
    history = plane.get(STATE + "alerts.limits/history", key="gin")["items"]
    assert [(item["epoch"], item["new"]) for item in history] == [(2, {"most": 60}), (1, {"most": 50})]
    assert plane.get(STATE + "batches.waiting/keys/2,1", epoch=1)["value"] == {"id": 11}
    assert plane.get(STATE + "batches.waiting/history", key="2,1")["items"][0]["new"] is None
    differences = plane.get("/v1/applications/flights/snapshots/1/diff", to="2")["tables"]
    counted = {each["table"]: (each["added"], each["changed"], each["deleted"]) for each in differences}
    assert counted == {
        "alerts.latest": (0, 0, 0),
        "alerts.limits": (0, 1, 1),
        "batches.waiting": (1, 0, 1),
        "parts.count": (0, 0, 0),
        "parts.own": (0, 0, 0),
        "parts.sums": (0, 1, 0),
    }
    past = plane.get(STATE + "parts.sums/history", key="0,gin")["items"]
    assert [(item["epoch"], item["new"]) for item in past] == [(2, {"n": 4, "at": 6}), (1, {"n": 1, "at": 9})]
    assert plane.get(STATE + "parts.sums/keys/gin", epoch=1)["value"] == {"n": 3, "at": 9}
    for id, key, named in (("parts.sums", "gin", "0,gin"), ("parts.count", "", "0")):
        answer = plane.client.get(f"{STATE}{id}/history", params={"key": key})
        assert answer.json()["type"].endswith("invalid-key")
        assert answer.json()["detail"].endswith(f"begin the key with an instance number, {named}.")


@pytest.mark.alternating(2)
def test_client_and_command_show_the_scope(
    plane: Plane, driver: StateDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = plane.settings.admin_token_file.read_text().strip()
    with Client(plane.settings.url, token) as client:
        application = client.application("flights")
        scopes = {each.table: each.scope for each in application.state_tables()}
        parts = dict.fromkeys(("parts.count", "parts.own", "parts.sums"), "partial")
        others = {"alerts.latest": "broadcast", "alerts.limits": "broadcast", "batches.waiting": "operator"}
        assert scopes == {**others, **parts}
        together = application.state("parts.sums").get("gin")
        assert (together.value, together.instances and together.instances[1].instance) == ({"n": 6, "at": 8}, 1)
        assert application.state("alerts.limits").get("gin").value == {"most": 60}
        assert [row.value["id"] for row in application.state("batches.waiting").scan_all()] == [10, 12, 20, 21]
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", token)
    for command, shown in (
        (["get", "flights", "alerts.limits", "gin"], "60"),
        (["scan", "flights", "batches.waiting"], "21"),
        (["get", "flights", "parts.sums", "gin"], "all"),
        (["show", "flights"], "partial map"),
        (["show", "flights"], "operator list"),
        (["show", "flights"], "broadcast map"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(command)
        assert shown in capsys.readouterr().out


@pytest.mark.alternating(2)
def test_state_without_a_key_moves_with_its_application(plane: Plane, driver: StateDriver) -> None:
    done = imported(plane, exported(plane, epoch=1), name="copy")
    assert done["state"] == "succeeded", done["error"]
    copy = "/v1/applications/copy/state/"
    assert plane.get(copy + "alerts.limits/keys/gin")["value"] == {"most": 50}
    rows = plane.get(copy + "batches.waiting/scan")["items"]
    assert [row["value"]["id"] for row in rows] == [10, 12, 20, 11]
    assert {table["table"]: table["scope"] for table in plane.get(copy[:-1])["items"]}["batches.waiting"] == "operator"
