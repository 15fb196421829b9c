"""Look-ups of overlapping windows over a real socket: state has panes, and look-ups return windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from epochal import Client, cumulative, sliding, tumbling
from epochal.aggregates.kept_merges import merges_of
from epochal.cli.main import main
from epochal.contracts.conditions import Clock, EpochConditions, Watermarks, microseconds
from epochal.declarations.windows import GridWindows, windowing
from epochal.operators.windows.panes import pane_table
from epochal.state.table import Quotient, StateKind, StateTable
from epochal.wire.state import ARROW_STREAM
from tests.service.lookups import StateDriver, refused, table
from tests.unit.tasks.window_events import PLAN

if TYPE_CHECKING:
    from tests.service.conftest import Plane

STATE = "/v1/applications/flights/state/"
VALUES = "flights bigint, total bigint, worst int"


def window_table(id: str, windows: GridWindows) -> StateTable:
    mean = Quotient(name="mean", dividend="total", divisor="flights")
    partials = table(id, StateKind.AGGREGATE, "city string", VALUES).model_copy(
        update={"merges": merges_of(PLAN.parts), "shown": (mean,)}
    )
    return pane_table(partials, windows, windowing(windows, "2 minutes", "final"))


SLIDING = window_table("sliding", sliding("15 minutes", "10 minutes"))
SO_FAR = window_table("so_far", cumulative("30 minutes", "10 minutes"))
PLAIN = window_table("plain", tumbling("10 minutes"))
TOP = SLIDING.model_copy(update={"id": "top", "operator": "top", "merges": None})
"""A table of an operator whose panes are not merged by look-ups."""
BEGIN = datetime(2013, 1, 31, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


def shown(minutes: int) -> str:
    return f"{at(minutes):%Y-%m-%dT%H:%M:%S.%fZ}"


def pane(city: str, minutes: int, *worsts: int) -> dict[str, Any]:
    values = {"flights": len(worsts), "total": sum(worsts), "worst": max(worsts)}
    return {"city": city, "pane_start": at(minutes), **values}


def window(first: int, last: int, *worsts: int) -> dict[str, Any]:
    mean = {"mean": sum(worsts) / len(worsts)}
    message = {"window_start": shown(first), "window_end": shown(last)}
    return message | {"flights": len(worsts), "total": sum(worsts), "worst": max(worsts)} | mean


def clock(fire: int) -> EpochConditions:
    places = {name: Watermarks(fire=microseconds(at(fire))) for name in ("sliding", "so_far", "plain", "top")}
    return EpochConditions(clock=Clock(epoch_time=microseconds(at(0)), places=places))


@pytest.fixture
def driver(plane: Plane) -> StateDriver:
    plane.application()
    driver = StateDriver(plane, tables=(SLIDING, SO_FAR, PLAIN, TOP))
    driver.conditions = clock(1)
    driver.epoch(
        (SLIDING, [pane("JFK", 0, 1), pane("JFK", 5, 2, 3), pane("JFK", 10, 4), pane("J", 10, 9), pane("JFKX", 10, 9)]),
        (SO_FAR, [pane("JFK", 0, 1), pane("JFK", 10, 2)]),
    )
    driver.conditions = clock(17)  # closes windows that end at minute 15 or earlier
    driver.epoch((SLIDING, [pane("JFK", 20, 5, 6)]), (SO_FAR, [pane("JFK", 20, 7)]))
    plane.get(STATE + "sliding/keys/JFK", min_epoch=2)
    driver.conditions = clock(18)
    driver.prepare((SLIDING, [pane("JFK", 10, 4, 8)]))
    return driver


def test_key_lists_its_open_windows_and_a_start_time_selects_one(plane: Plane, driver: StateDriver) -> None:
    early = [window(-10, 5, 1), window(0, 15, 1, 2, 3, 4), window(10, 25, 4)]
    for when, expected in (
        ({"epoch": 1}, early),
        ({}, [window(10, 25, 4, 5, 6), window(20, 35, 5, 6)]),
        ({"isolation": "read_uncommitted"}, [window(10, 25, 4, 8, 5, 6), window(20, 35, 5, 6)]),
    ):
        assert plane.get(STATE + "sliding/keys/JFK", **when)["entries"] == expected
        for entry in expected:
            found = plane.get(STATE + f"sliding/keys/JFK,{entry['window_start']}", **when)
            assert found["key"] == {"city": "JFK", "window_start": entry["window_start"]}
            assert {"window_start": entry["window_start"], **found["value"]} == entry
        keys = [{"city": "JFK", "window_start": shown(minutes)} for minutes in (-10, 0, 3, 10, 20, 30)]
        values = plane.client.post(STATE + "sliding/lookup", json={"keys": keys, **when}).json()["values"]
        by_start = {entry["window_start"]: entry for entry in expected}
        assert [value and value["worst"] for value in values] == [
            by_start[key["window_start"]]["worst"] if key["window_start"] in by_start else None for key in keys
        ]
    assert refused(plane, STATE + f"sliding/keys/JFK,{shown(0)}")[1] == "key-not-found"
    assert refused(plane, STATE + f"sliding/keys/JFK,{shown(3)}", epoch=1)[1] == "key-not-found"
    assert refused(plane, STATE + "sliding/keys/LAX")[1] == "key-not-found"
    in_columns = plane.client.post(STATE + "sliding/lookup", json={"keys": keys}, headers={"Accept": ARROW_STREAM})
    assert (in_columns.status_code, in_columns.json()["type"].rpartition(":")[2]) == (422, "invalid-input")


def test_scans_histories_and_differences_are_marked_as_panes(plane: Plane, driver: StateDriver) -> None:
    snapshots = "/v1/applications/flights/snapshots/1/diff"
    scan = plane.get(STATE + "sliding/scan", prefix="JFK")
    assert [row["key"]["pane_start"] for row in scan["items"]] == [shown(minutes) for minutes in (5, 10, 20)]
    history = plane.get(STATE + "sliding/history", key="JFK")
    assert {item["key"]["pane_start"] for item in history["items"]} == {shown(minutes) for minutes in (0, 5, 10, 20)}
    rows = plane.get(f"{snapshots}/sliding", to="2")
    assert ("added", shown(20)) in [(row["kind"], row["key"]["pane_start"]) for row in rows["items"]]
    tables = {each["table"]: each["note"] for each in plane.get("/v1/applications/flights/state")["items"]}
    summary = {each["table"]: each["note"] for each in plane.get(snapshots, to="2")["tables"]}
    note = tables["sliding"]
    assert note == (
        "Rows are panes, which several sliding windows (size 15 minutes, slide 10 minutes) share, not windows. "
        "Look-ups of a key show windows."
    )
    assert scan["note"] == history["note"] == rows["note"] == summary["sliding"] == note
    assert "cumulative windows (size 30 minutes, step 10 minutes)" in tables["so_far"]
    columns = plane.client.get(STATE + "sliding/scan", params={"prefix": "JFK"}, headers={"Accept": ARROW_STREAM})
    metadata = pa.ipc.open_stream(columns.content).schema.metadata
    assert metadata[b"note"].decode() == note and b"next_cursor" not in metadata
    assert tables["plain"] is scan_of(plane, "plain")["note"] is None
    assert tables["top"].endswith("Look-ups show panes, too.")


def scan_of(plane: Plane, table: str) -> dict[str, Any]:
    return dict(plane.get(STATE + f"{table}/scan"))


def test_cumulative_windows_with_one_start_are_all_listed(plane: Plane, driver: StateDriver) -> None:
    assert plane.get(STATE + "so_far/keys/JFK")["entries"] == [window(0, 20, 1, 2), window(0, 30, 1, 2, 7)]
    assert len(plane.get(STATE + f"so_far/keys/JFK,{shown(0)}")["entries"]) == 2
    keys = [{"city": "JFK", "window_start": shown(0)}]
    (value,) = plane.client.post(STATE + "so_far/lookup", json={"keys": keys}).json()["values"]
    assert (value["window_end"], value["flights"]) == (shown(30), 3)


def test_windows_show_the_first_epoch_of_a_later_column(plane: Plane, driver: StateDriver) -> None:
    value = tuple(each.model_copy(update={"since": 4} if each.name == "total" else {}) for each in SLIDING.value)
    number = driver.epoch(tables=(SLIDING.model_copy(update={"value": value}),))
    one = f"{STATE}sliding/keys/JFK,{shown(20)}"
    keys = [{"city": "JFK", "window_start": shown(20)}]
    for when, since in (({"min_epoch": number}, {"total": 4, "mean": 4}), ({"epoch": 2}, None)):
        answers = [plane.get(STATE + "sliding/keys/JFK", **when), plane.get(one, **when)]
        answers.append(plane.client.post(STATE + "sliding/lookup", json={"keys": keys, **when}).json())
        answers += [] if since is None else [scan_of(plane, "sliding")]
        assert [answer.get("since") for answer in answers] == [since] * len(answers)


def test_invalid_keys_are_reported(plane: Plane, driver: StateDriver) -> None:
    assert refused(plane, STATE + "sliding/keys/JFK,noon")[1] == "invalid-key"
    for key in ({"city": "JFK", "pane_start": shown(0)}, {"city": "JFK", "window_start": None}):
        answer = plane.client.post(STATE + "sliding/lookup", json={"keys": [key]})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:invalid-key"), answer.text


def test_client_and_command_list_windows(
    plane: Plane, driver: StateDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = plane.settings.admin_token_file.read_text().strip()
    with Client(plane.settings.url, token) as client:
        state = client.application("flights").state("sliding")
        assert [entry["flights"] for entry in state.get("JFK").entries or ()] == [3, 2]
        value = state.get("JFK", at(10)).value
        assert value is not None and value["flights"] == 3
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", token)
    for command, message in (
        (["get", "flights", "sliding", "JFK"], "2013-01-31"),
        (["get", "flights", "sliding", "JFK", shown(10)], "2013-01-31"),
        (["scan", "flights", "sliding", "JFK"], "Rows are panes"),
        (["get", "flights", "sliding", "JFK", "--history"], "Rows are panes"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(command)
        assert message in capsys.readouterr().out
