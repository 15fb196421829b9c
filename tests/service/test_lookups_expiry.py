"""Windows and rows with a time to live over a real socket: listed by key, removed with the snapshot in which they
expire."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal import Client
from epochal.cli.main import main
from epochal.contracts.conditions import BEGINNING, Clock, EpochConditions, Watermarks, microseconds
from epochal.service.runtime.replicas.applying import catch_up
from epochal.service.runtime.replicas.generations import Generations
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import Expiry, StateClock
from epochal.state.table import Column, StateKind
from tests.service.bundles import exported, imported
from tests.service.lookups import StateDriver, refused, table
from tests.unit.snapshot_tree import SESSIONS, WINDOWS, Branch

if TYPE_CHECKING:
    from tests.service.conftest import Plane

MINUTE = 60_000_000
HOURLY = table("hourly", StateKind.AGGREGATE, "city string", "flights bigint").model_copy(
    update={
        "time": Column(name="window_start", type="timestamp"),
        "expires": Expiry(clock="event", column="window_start", after=60 * MINUTE),
    }
)
SEEN = table("seen.last", StateKind.VALUE, "tail string", "place string, _touched timestamp").model_copy(
    update={"expires": Expiry(clock="processing", column="_touched", after=10 * MINUTE)}
)
STATE = "/v1/applications/flights/state/"


def at(minutes: int) -> datetime:
    return datetime(2013, 1, 31, tzinfo=UTC) + timedelta(minutes=minutes)


def shown(minutes: int) -> str:
    return f"{at(minutes):%Y-%m-%dT%H:%M:%S.%fZ}"


def window(city: str, minutes: int, flights: int) -> dict[str, Any]:
    return {"city": city, "window_start": at(minutes), "flights": flights}


def clock(fire: int, now: int) -> EpochConditions:
    places = {"hourly": Watermarks(fire=microseconds(at(fire)))}
    return EpochConditions(clock=Clock(epoch_time=microseconds(at(now)), places=places))


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    """The second epoch closes the first window; the third epoch, which is prepared but not committed, closes the
    second."""
    plane.application()
    driver = StateDriver(plane, tables=(HOURLY, SEEN))
    driver.conditions = clock(30, 0)
    driver.epoch(
        (HOURLY, [window("JFK", 60, 2), window("JFK", 0, 1), window("LAX", 0, 5)]),
        (SEEN, [{"tail": "N1", "place": "JFK", "_touched": at(0)}, {"tail": "N2", "place": "LAX", "_touched": at(0)}]),
    )
    driver.conditions = clock(60, 9)
    driver.epoch((HOURLY, [window("JFK", 120, 3)]), (SEEN, [{"tail": "N2", "place": "LAX", "_touched": at(9)}]))
    plane.get(STATE + "hourly/keys/JFK", min_epoch=2)
    driver.conditions = clock(130, 10)
    driver.prepare((HOURLY, [window("JFK", 180, 4)]))
    return driver


def test_key_lists_its_windows_and_a_start_time_selects_one(plane: Plane, driver: StateDriver) -> None:
    two, three, four = ({"window_start": shown(60 * n), "flights": n + 1} for n in (1, 2, 3))
    one = {"window_start": shown(0), "flights": 1}
    for when, expected in (
        ({}, [two, three]),
        ({"epoch": 2}, [two, three]),
        ({"epoch": 1}, [one, two]),
        ({"isolation": "read_uncommitted"}, [three, four]),
    ):
        assert plane.get(STATE + "hourly/keys/JFK", **when)["entries"] == expected
        for entry in expected:
            found = plane.get(STATE + f"hourly/keys/JFK,{entry['window_start']}", **when)
            assert found["value"] == {"flights": entry["flights"]}
            assert found["key"] == {"city": "JFK", "window_start": entry["window_start"]}
        rows = plane.get(STATE + "hourly/scan", **when)["items"]
        listed = [row["key"] for row in rows if row["key"]["city"] == "JFK"]
        assert listed == [{"city": "JFK", "window_start": entry["window_start"]} for entry in expected]
        keys = [{"city": "JFK", "window_start": shown(60 * n)} for n in range(4)]
        answer = plane.client.post(STATE + "hourly/lookup", json={"keys": keys, **when}).json()
        by_time = {entry["window_start"]: {"flights": entry["flights"]} for entry in expected}
        assert answer["values"] == [by_time.get(key["window_start"]) for key in keys]
    assert refused(plane, STATE + f"hourly/keys/JFK,{shown(0)}")[1] == "key-not-found"
    assert refused(plane, STATE + "hourly/keys/LAX")[1] == "key-not-found"


def test_rows_are_removed_when_their_time_to_live_ends(plane: Plane, driver: StateDriver) -> None:
    assert plane.get(STATE + "seen.last/keys/N1")["value"] == {"place": "JFK"}
    uncommitted = {"isolation": "read_uncommitted"}
    assert refused(plane, STATE + "seen.last/keys/N1", **uncommitted)[1] == "key-not-found"
    assert plane.get(STATE + "seen.last/keys/N2", **uncommitted)["value"] == {"place": "LAX"}
    driver.commit()
    plane.get(STATE + "seen.last/keys/N2", min_epoch=3)
    assert refused(plane, STATE + "seen.last/keys/N1")[1] == "key-not-found"
    assert plane.get(STATE + "seen.last/keys/N1", epoch=2)["value"] == {"place": "JFK"}
    tables = {each["table"]: each for each in plane.get("/v1/applications/flights/state")["items"]}
    assert [tables[name]["rows"] for name in ("hourly", "seen.last")] == [2, 1]
    assert [column["name"] for column in tables["seen.last"]["value"]] == ["place"]
    assert [column["name"] for column in tables["hourly"]["sub_key"]] == ["window_start"]


def test_histories_and_differences_show_expiry(plane: Plane, driver: StateDriver) -> None:
    driver.commit()
    plane.get(STATE + "seen.last/keys/N2", min_epoch=3)
    history = plane.get(STATE + "seen.last/history", key="N1")["items"]
    assert [(item["epoch"], item["new"], item["expired"]) for item in history] == [
        (3, None, True),
        (1, {"place": "JFK"}, False),
    ]
    assert [item["epoch"] for item in plane.get(STATE + "seen.last/history", key="N2")["items"]] == [1]
    assert plane.get(STATE + "hourly/blame", key=f"JFK,{shown(0)}")["change"]["expired"] is True
    windows = plane.get(STATE + "hourly/history", key="JFK")["items"]
    assert [(item["epoch"], item["key"]["window_start"], item["expired"]) for item in windows] == [
        (3, shown(60), True),
        (3, shown(180), False),
        (2, shown(0), True),
        (2, shown(120), False),
        (1, shown(0), False),
        (1, shown(60), False),
    ]
    diff = plane.get("/v1/applications/flights/snapshots/1/diff", to="3")["tables"]
    assert {each["table"]: (each["added"], each["changed"], each["deleted"], each["expired"]) for each in diff} == {
        "hourly": (2, 0, 0, 3),
        "seen.last": (0, 0, 0, 1),
    }
    rows = plane.get("/v1/applications/flights/snapshots/1/diff/seen.last", to="3")["items"]
    assert [(row["kind"], row["key"], row["old"], row["new"]) for row in rows] == [
        ("expired", {"tail": "N1"}, {"place": "JFK"}, None)
    ]


def test_client_and_command_list_windows(
    plane: Plane, driver: StateDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = plane.settings.admin_token_file.read_text().strip()
    with Client(plane.settings.url, token) as client:
        state = client.application("flights").state("hourly")
        entries = state.get("JFK").entries
        assert entries is not None
        assert [entry["flights"] for entry in entries] == [2, 3]
        assert state.get("JFK", at(60)).value == {"flights": 2}
        assert [change.expired for change in state.history("LAX").items] == [True, False]
        assert [row.value for row in state.scan_all("JFK")] == [{"flights": 2}, {"flights": 3}]
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", token)
    for command, text in (
        (["get", "flights", "hourly", "JFK"], "2013-01-31"),
        (["get", "flights", "hourly", "JFK", shown(60)], "2"),
        (["get", "flights", "hourly", "LAX", "--history"], "(expired)"),
        (["show", "flights"], "window_start"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(command)
        assert text in capsys.readouterr().out


@pytest.mark.alternating(2)
def test_export_keeps_the_clock_of_its_snapshot(plane: Plane, driver: StateDriver) -> None:
    done = imported(plane, exported(plane, epoch=1), name="copy")
    assert done["state"] == "succeeded", done["error"]
    copy = "/v1/applications/copy/state/"
    entries = plane.get(copy + "hourly/keys/JFK")["entries"]
    assert [entry["window_start"] for entry in entries] == [shown(0), shown(60)]
    assert plane.get(copy + "seen.last/keys/N1")["value"] == {"place": "JFK"}


@pytest.mark.parametrize("seed", range(3))
def test_replica_has_exactly_the_rows_of_the_committed_snapshot(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    branch = Branch(SnapshotStore(str(tmp_path / "store")), tables=(WINDOWS, SESSIONS))
    branch.clock = StateClock(event=BEGINNING, processing=0)
    places = [(name, place) for name in ("N1", "n" * 600) for place in ("A", "B" * 500)]
    cities = ["JFK", None, "L" * 900]
    for number in range(24):
        event = max(branch.clock.event, 0) + chance.choice([0, 1, 4])
        branch.clock = StateClock(event, branch.clock.processing + chance.choice([0, 1, 3]))
        touched = chance.choice([branch.clock.processing, None])
        key = (chance.choice(cities), event + chance.randint(-5, 5))
        row = None if chance.random() < 0.2 else {"late": number, "_touched": touched}
        branch.epoch((WINDOWS, key, {"count": number}), (SESSIONS, chance.choice(places), row))
        if chance.random() < 0.2:
            branch.compact()
    for timed in (WINDOWS, SESSIONS):
        generations = Generations(tmp_path / timed.id)
        format = RowFormat(timed)
        for head in chance.sample(branch.epochs, 6) + branch.epochs[-6:]:
            replica = catch_up(generations, branch.store, head, timed)
            rows = branch.models[head.key].get(timed.id, {})
            at, found = replica.scan(b"")
            assert (at, replica.count()) == (head.key, (len(rows), head.key))
            assert sorted(key for key, _ in found) == sorted(map(format.encode_key, rows))
            with replica.environment.begin() as transaction:
                # A row that is written again leaves its earlier entry in the index until that time has passed.
                assert transaction.stat(replica.times)["entries"] <= 24
        generations.close()
