"""Look-ups over a real socket, from real snapshots: which epoch answers, what a client is told when none can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
import pytest

from epochal.contracts.catalog import EpochCounts, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.snapshots.delta import sort_changes, write_delta
from epochal.snapshots.manifest import DeltaFile, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.keygroups import key_groups
from epochal.state.table import Column, StateKind, StateTable

if TYPE_CHECKING:
    from tests.service.conftest import Plane


def columns(text: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, type=type) for name, type in (part.split() for part in text.split(", ") if part))


def table(id: str, kind: StateKind, key: str, value: str, sub_key: str = "", queryable: bool = True) -> StateTable:
    return StateTable(
        id=id,
        operator=id.partition(".")[0],
        kind=kind,
        key=columns(key),
        sub_key=columns(sub_key),
        value=columns(value),
        queryable=queryable,
    )


DELAYS = table("delays", StateKind.AGGREGATE, "origin string, destination string", "flights bigint, worst double")
VISITS = table("visits.places", StateKind.MAP, "tail string", "late int", sub_key="airport string")
HIDDEN = table("hidden", StateKind.VALUE, "k int", "v int", queryable=False)
TYPES = table(
    "types",
    StateKind.VALUE,
    "i int, b boolean, d date, m decimal(6,2), t timestamp, y binary",
    "d date, m decimal(6,2), t timestamp, n timestamp_ntz, y binary, f float, s smallint",
)
MAX_PARALLELISM = 128


@dataclass
class StateDriver:
    """A driver that writes state as the engine does: deltas by subtask, a manifest, then the catalog's steps."""

    plane: Plane
    application: str = "flights"
    tables: tuple[StateTable, ...] = (DELAYS, VISITS, HIDDEN)
    head: ManifestReference | None = None
    pending: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = self.plane.driver(self.application)
        self.driver.running()
        self.head = self.driver.point.head
        self.next_epoch = self.driver.point.next_epoch
        self.store = SnapshotStore(self.plane.settings.store_url)

    def prepare(self, *changes: tuple[StateTable, list[dict[str, Any]]]) -> int:
        """Rows are puts; rows with only key columns are deletes."""
        number, branch = self.next_epoch, self.driver.point.branch
        key, parent = EpochKey(branch, number), self.head.key if self.head else None
        self.driver.catalog.open_epoch(number, parent)
        manifest = Manifest(
            application=self.application,
            branch=branch,
            epoch=number,
            parent=self.head,
            execution=self.driver.execution,
            attempt=self.driver.attempt,
            artifact="0" * 64,
            parallelism=2,
            max_parallelism=MAX_PARALLELISM,
            tables=self.tables,
            deltas=tuple(delta for change in changes for delta in self._deltas(key, *change)),
            created_at=datetime.now(UTC),
        )
        reference = self.store.write_manifest(manifest)
        self.driver.catalog.prepare_epoch(number, parent, reference, EpochCounts())
        self.head, self.next_epoch = reference, number + 1
        self.pending.append(number)
        return number

    def commit(self) -> None:
        for number in self.pending:
            self.driver.catalog.commit_epoch(number)
        self.pending.clear()

    def epoch(self, *changes: tuple[StateTable, list[dict[str, Any]]]) -> int:
        number = self.prepare(*changes)
        self.commit()
        return number

    def savepoint(self, name: str) -> None:
        self.plane.post(f"/v1/applications/{self.application}/savepoints", name=name)
        for directive in self.driver.running():
            self.driver.catalog.complete(directive.id, self.head)

    def _deltas(self, at: EpochKey, table: StateTable, rows: list[dict[str, Any]]) -> Iterator[DeltaFile]:
        names = [column.name for column in (*table.full_key, *table.value)]
        values = {name: [row.get(name) for row in rows] for name in names}
        keys = pa.table({column.name: values[column.name] for column in table.full_key}, schema=table.key_schema)
        schema = pa.schema([table.key_schema.field(column.name) for column in table.key])
        groups = key_groups(keys.select(schema.names), schema, MAX_PARALLELISM)
        put = {column.name for column in table.value}
        operations = ["put" if put & row.keys() else "delete" for row in rows]
        changes = pa.table({"_kg": groups, "_op": operations, **values}, schema=table.delta_schema)
        for subtask in range(2):
            yield write_delta(self.store, sort_changes(table, changes.filter(groups % 2 == subtask)), at, subtask, 2)


def route(origin: str, destination: str, flights: int | None = None, worst: float | None = None) -> dict[str, Any]:
    key = {"origin": origin, "destination": destination}
    return key if flights is None else key | {"flights": flights, "worst": worst}


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    return StateDriver(plane)


KEYS = "/v1/applications/flights/state/delays/keys/"


def get(plane: Plane, key: str, **query: Any) -> Any:
    return plane.get(KEYS + key, **query)


def refused(plane: Plane, path: str, **query: Any) -> tuple[int, str, str]:
    answer = plane.client.get(path, params=query or None)
    problem = answer.json()
    return answer.status_code, problem["type"].removeprefix("urn:epochal:problem:"), problem["detail"]


def test_a_key_is_answered_with_the_epoch_that_it_is_from(plane: Plane, driver: StateDriver) -> None:
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


def test_the_short_way_and_the_ordinary_route_answer_alike(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5), route("a/b", "ü,%", 2, 0.5)]))
    get(plane, "JFK,LAX", min_epoch=1)
    for key in ("JFK,LAX", "a%2Fb,%C3%BC%2C%25"):
        short = plane.client.get(KEYS + key)
        ordinary = plane.client.get(KEYS + key, params={"isolation": "read_committed"})
        assert short.content == ordinary.content
        for name in ("content-type", "etag", "epochal-epoch", "cache-control", "content-length"):
            assert short.headers[name] == ordinary.headers[name]
        assert short.headers["x-request-id"] and ordinary.headers["x-request-id"]


def test_without_a_good_token_nothing_is_answered(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    get(plane, "JFK,LAX", min_epoch=1)
    for token in (None, "ept_wrong"):
        with plane.as_bearer(token) as client:
            assert client.get(KEYS + "JFK,LAX").status_code == 401
            assert client.post("/v1/applications/flights/state/delays/lookup", json={"keys": []}).status_code == 401
    with plane.as_bearer(plane.token("read")) as client:
        assert client.get(KEYS + "JFK,LAX").status_code == 200


REFUSED = [
    (KEYS + "JFK,SFO", 404, "key-not-found", "at epoch 1"),
    (KEYS + "JFK", 422, "invalid-key", "{origin},{destination}"),
    (KEYS + "JFK,LAX,1", 422, "invalid-key", "3 values"),
    ("/v1/applications/flights/state/streaks/keys/N1", 404, "not-found", "it has delays, visits.places"),
    ("/v1/applications/flights/state/hidden/keys/1", 404, "not-found", "queryable=True"),
    ("/v1/applications/nobody/state/delays/keys/a,b", 404, "not-found", "nobody"),
    ("/v1/applications/nobody/state", 404, "not-found", "nobody"),
    (KEYS + "JFK,LAX?epoch=9", 404, "not-found", "9"),
    (KEYS + "JFK,LAX?epoch=1&savepoint=x", 422, "invalid-input", "not both"),
    (KEYS + "JFK,LAX?epoch=1&isolation=read_uncommitted", 422, "invalid-input", "isolation"),
    (KEYS + "JFK,LAX?savepoint=none", 404, "not-found", "none"),
    ("/v1/applications/flights/state/hidden/keys/1?epoch=1", 404, "not-found", "queryable=True"),
    ("/v1/applications/flights/state/streaks/keys/1?epoch=1", 404, "not-found", "streaks"),
]


def test_what_is_not_there_or_wrong_is_said(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]), (HIDDEN, [{"k": 1, "v": 1}]))
    get(plane, "JFK,LAX", min_epoch=1)
    for path, status, slug, said in REFUSED:
        found_status, found_slug, detail = refused(plane, path)
        assert (found_status, found_slug) == (status, slug), f"{path}: {detail}"
        assert said in detail, path


def test_before_the_first_commit_there_is_no_state(plane: Plane, driver: StateDriver) -> None:
    assert plane.get("/v1/applications/flights/state")["items"] == []
    assert refused(plane, KEYS + "JFK,LAX")[1] == "not-found"
    driver.prepare((DELAYS, [route("JFK", "LAX", 1, 2.5)]))
    assert "not committed an epoch" in refused(plane, KEYS + "JFK,LAX")[2]


def test_uncommitted_reads_see_what_is_prepared(plane: Plane, driver: StateDriver) -> None:
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
def test_min_epoch_waits_and_then_gives_up(plane: Plane, driver: StateDriver, isolation: str) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    status, slug, _ = refused(plane, KEYS + "JFK,LAX", min_epoch=2, wait_seconds=0.1, isolation=isolation)
    assert (status, slug) == (409, "not-yet-committed")

    later = threading.Timer(0.5, lambda: driver.epoch((DELAYS, [route("JFK", "LAX", 2, 1.0)])))
    later.start()
    assert get(plane, "JFK,LAX", min_epoch=2, wait_seconds=20, isolation=isolation)["value"]["flights"] == 2
    later.join()


def test_the_past_is_read_from_its_snapshot(plane: Plane, driver: StateDriver) -> None:
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


def test_an_expired_snapshot_is_gone(plane: Plane) -> None:
    plane.application(configuration={"retained_epochs": 2})
    driver = StateDriver(plane)
    for number in range(4):
        driver.epoch((DELAYS, [route("JFK", "LAX", number, 1.0)]))
    assert refused(plane, KEYS + "JFK,LAX", epoch=1)[:2] == (410, "snapshot-expired")
    assert get(plane, "JFK,LAX", epoch=4)["value"]["flights"] == 3


def test_a_batch_comes_from_one_epoch_in_the_order_asked_for(plane: Plane, driver: StateDriver) -> None:
    names = [f"A{number}" for number in range(2500)]
    path = "/v1/applications/flights/state/delays/lookup"
    done = threading.Event()
    seen: list[tuple[int, set[int]]] = []

    def look() -> None:
        with plane.as_bearer(plane.token("read")) as client:
            while not done.is_set():
                answer = client.post(path, json={"keys": [route(name, "X") for name in names]})
                if answer.status_code == 200:
                    seen.append((answer.json()["epoch"], {value["flights"] for value in answer.json()["values"]}))

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(1, 8):
        driver.epoch((DELAYS, [route(name, "X", number, 0.5) for name in names]))
    answer = plane.post(path, 200, keys=[route("none", "X"), route("A7", "X"), route("A7", "X")], min_epoch=7)
    done.set()
    looking.join()
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
    ({"origin": "JFK", "destination": None}, "destination missing"),
]
NO_BATCHES = [{"keys": [{}] * 10_001}, {"keys": [], "unknown": 1}, {"keys": ["JFK"]}, {}, {"keys": [], "epoch": -1}]


def test_a_batch_that_is_wrong_is_refused_and_a_wrong_key_named(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    get(plane, "JFK,LAX", min_epoch=1)
    path = "/v1/applications/flights/state/delays/lookup"
    for key, said in WRONG_KEYS:
        answer = plane.client.post(path, json={"keys": [route("JFK", "LAX"), key]})
        assert answer.status_code == 422 and answer.json()["type"].endswith(":invalid-key"), key
        assert said in answer.json()["detail"], key
    for body in NO_BATCHES:
        assert plane.client.post(path, json=body).status_code == 422, body


def test_a_value_that_did_not_change_is_not_sent_again(plane: Plane, driver: StateDriver) -> None:
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


def place(tail: str, airport: str, late: int | None = None) -> dict[str, Any]:
    return {"tail": tail, "airport": airport} | ({} if late is None else {"late": late})


def test_map_state_is_addressed_as_a_whole_or_by_its_own_key(plane: Plane, driver: StateDriver) -> None:
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
    # One row has key and value columns of one name, which a real pipeline cannot declare: told apart by position only.
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
        "key": [{"name": "origin", "type": "string"}, {"name": "destination", "type": "string"}],
        "sub_key": [],
        "value": [{"name": "flights", "type": "bigint"}, {"name": "worst", "type": "double"}],
        "queryable": True,
        "rows": 2,
        "branch": driver.driver.point.branch,
        "epoch": 1,
    }
    assert (listed["visits.places"]["rows"], listed["hidden"]["rows"]) == (0, None)
    first = plane.get("/v1/applications/flights/state", limit=2)
    rest = plane.get("/v1/applications/flights/state", limit=2, cursor=first["next_cursor"])
    assert [item["table"] for item in first["items"] + rest["items"]] == sorted(listed)
    assert rest["next_cursor"] is None


def test_a_stopped_application_answers_also_after_a_restart_and_without_replicas(
    plane: Plane, driver: StateDriver, serve: Callable[..., Any]
) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    plane.post("/v1/applications/flights/stop")
    driver.driver.stop()
    assert plane.get("/v1/applications/flights")["state"] == "stopped"
    assert get(plane, "JFK,LAX", min_epoch=1)["value"]["flights"] == 1
    # A second control plane on the same catalog and store, which has no replica yet: it follows from the store alone.
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


def test_a_fork_has_its_parents_state_and_then_its_own(plane: Plane, driver: StateDriver) -> None:
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


def test_a_damaged_snapshot_is_named_and_what_was_committed_before_goes_on_answering(
    plane: Plane, driver: StateDriver
) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    get(plane, "JFK,LAX", min_epoch=1)
    driver.prepare((DELAYS, [route("JFK", "LAX", 2, 1.0)]))
    assert driver.head is not None
    deltas = driver.store.read_manifest(driver.head).deltas
    (file,) = (delta.file for delta in deltas if delta.file.rows)
    path = Path(driver.store.location(file.path))
    kept = path.read_bytes()
    path.write_bytes(kept[:-3] + b"\x00\x00\x00")
    assert file.path in refused(plane, KEYS + "JFK,LAX", isolation="read_uncommitted")[2]
    driver.commit()
    assert get(plane, "JFK,LAX")["epoch"] == 1
    assert file.path in refused(plane, KEYS + "JFK,LAX", epoch=2)[2]
    path.write_bytes(kept)
    assert get(plane, "JFK,LAX", min_epoch=2, wait_seconds=20)["value"]["flights"] == 2


def test_a_deleted_application_takes_its_replicas_with_it(plane: Plane, driver: StateDriver) -> None:
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 1.0)]))
    get(plane, "JFK,LAX", min_epoch=1)
    plane.post("/v1/applications/flights/stop")
    driver.driver.stop()
    assert plane.client.delete("/v1/applications/flights").status_code in (200, 204)
    deadline = time.monotonic() + 20
    while plane.client.get(KEYS + "JFK,LAX").status_code != 404:
        assert time.monotonic() < deadline
        time.sleep(0.05)
