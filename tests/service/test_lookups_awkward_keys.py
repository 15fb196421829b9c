"""Keys that a URL path cannot carry as they are, through HTTP, the client and the command line: dots, slashes, empty
strings, hyphens, null."""

from __future__ import annotations

import base64
from contextlib import redirect_stderr, redirect_stdout
from datetime import date
from io import StringIO
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.cli.main import main
from epochal.client import Client
from epochal.errors import InvalidKey, NotFound
from epochal.state.key_codec import FORM
from epochal.state.table import StateKind
from tests.service.cursors import signed
from tests.service.lookups import StateDriver, table

if TYPE_CHECKING:
    from tests.service.conftest import Plane

NAMES = table("names", StateKind.VALUE, "name string", "length int")
ROUTES = table("routes", StateKind.VALUE, "origin string, day date", "flights int")
PLACES = table("places", StateKind.MAP, "tail string", "late int", sub_key="airport string")
NUMBERS = table("numbers", StateKind.VALUE, "number int", "half double")
AWKWARD = (
    ".",
    "..",
    "",
    "...",
    "/",
    "a/b",
    "../x",
    "a\\b",
    "%",
    "%2E",
    "a,b",
    "-",
    "--",
    "--epoch",
    "ü*",
    "a\nb",
    "\r",
)


@pytest.fixture
def awkward(plane: Plane) -> Plane:
    plane.application()
    driver = StateDriver(plane, tables=(NAMES, NUMBERS))
    numbers = [{"number": number, "half": number / 2} for number in (-5, 5)]
    names = [{"name": name, "length": len(name)} for name in AWKWARD]
    assert driver.epoch((NAMES, names), (NUMBERS, numbers)) == 1
    return plane


@pytest.fixture
def client(awkward: Plane) -> Client:
    return Client(awkward.settings.url, token=awkward.settings.admin_token_file.read_text().strip())


def test_client_finds_every_key(client: Client) -> None:
    state = client.application("flights").state("names")
    for name in AWKWARD:
        answer = state.get(name, min_epoch=1)
        assert (answer.key, answer.value) == ({"name": name}, {"length": len(name)})
        assert state.get(name, epoch=1).value == answer.value
        assert state.blame(name).change.new == answer.value
        assert state.history(name).items[0].new == answer.value
    with pytest.raises(NotFound, match="at epoch 1"):
        state.get("....")
    with pytest.raises(NotFound):
        client.application("..").get()


def test_long_keys_are_scanned_page_by_page(plane: Plane) -> None:
    """The cursor of a page contains the last key of the page."""
    plane.application()
    driver = StateDriver(plane, tables=(NAMES,))
    names = [letter * 5_000 for letter in "abc"]
    driver.epoch((NAMES, [{"name": name, "length": len(name)} for name in names]))
    token = plane.settings.admin_token_file.read_text().strip()
    state = Client(plane.settings.url, token=token).application("flights").state("names")
    state.get(names[0], min_epoch=1)
    assert [row.key["name"] for row in state.scan_all(limit=1)] == names


def test_key_in_the_query_equals_key_in_the_path(awkward: Plane, client: Client) -> None:
    client.application("flights").state("names").get("a/b", min_epoch=1)
    state = "/v1/applications/flights/state/names/keys"
    in_path, in_query = awkward.client.get(f"{state}/a%2Fb"), awkward.client.get(state, params={"key": "a%2Fb"})
    assert in_query.content == in_path.content
    assert in_query.headers["etag"] == in_path.headers["etag"]
    again = awkward.client.get(state, params={"key": "a%2Fb"}, headers={"If-None-Match": in_path.headers["etag"]})
    assert again.status_code == 304
    assert awkward.client.get(state, params={"key": ".."}).json()["key"] == {"name": ".."}
    assert awkward.client.get(state).status_code == 422
    with awkward.as_bearer(None) as anonymous:
        assert anonymous.get(state, params={"key": ".."}).status_code == httpx.codes.UNAUTHORIZED


def test_application_and_table_may_be_named_keys(plane: Plane) -> None:
    plane.application("keys")
    named = table("keys", StateKind.VALUE, "name string", "length int")
    StateDriver(plane, "keys", (named,)).epoch((named, [{"name": "a,b", "length": 3}]))
    path = "/v1/applications/keys/state/keys/keys/a%2Cb"
    assert plane.get(path, min_epoch=1)["value"] == {"length": 3}
    assert plane.get(path, epoch=1)["value"] == {"length": 3}  # not on the fast path


def epochal(*arguments: str) -> tuple[int, str]:
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            main(arguments)
        except SystemExit as ended:
            return int(ended.code or 0), output.getvalue()
    return 0, output.getvalue()


def test_command_accepts_keys_like_options_after_two_hyphens(
    awkward: Plane, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.application("flights").state("names").get(".", min_epoch=1)
    monkeypatch.setenv("EPOCHAL_URL", awkward.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", awkward.settings.admin_token_file.read_text().strip())
    monkeypatch.setenv("COLUMNS", "200")
    for name in (".", "..", "-", "--epoch"):
        code, output = epochal("get", "flights", "names", "--", name)
        assert (code, output.split()[0], output.split()[-1]) == (0, name, str(len(name)))
    assert epochal("get", "flights", "numbers", "--epoch", "1", "--", "-5")[1].split()[-1] == "-2.5"
    assert "-2.5" in epochal("scan", "flights", "numbers", "--", "-5")[1]
    for verb in ("get", "scan"):
        code, output = epochal(verb, "flights", "numbers", "-5")
        assert (code, f"epochal {verb} .. -- -5" in output) == (2, True), output
    code, output = epochal("get", "flights", "numbers", "--epcoh", "1")
    assert (code, "--epoch" in output, " -- " in output) == (2, True, False), output


@pytest.fixture
def with_nulls(plane: Plane) -> StateDriver:
    """Two epochs; keys with null in the first column, in the second, and in both."""
    plane.application()
    driver = StateDriver(plane, tables=(ROUTES, PLACES))
    routes = [("JFK", None), (None, "2013-01-31"), (None, None), ("\0", None), ("JFK", "2013-01-31")]
    for number in (1, 2):
        rows = [
            {"origin": origin, "day": None if day is None else date.fromisoformat(day), "flights": number * (place + 1)}
            for place, (origin, day) in enumerate(routes)
        ]
        places = [{"tail": None, "airport": airport, "late": number} for airport in ("JFK", "LAX")]
        assert driver.epoch((ROUTES, rows), (PLACES, places)) == number
    plane.get("/v1/applications/flights/state/routes/keys/JFK,%00", min_epoch=2)
    return driver


ENCODED = {"JFK,%00": 2, "%00,2013-01-31": 4, "%00,%00": 6, "JFK,2013-01-31": 10}


def test_null_keys_are_accepted_in_path_query_and_body(plane: Plane, with_nulls: StateDriver) -> None:
    state = "/v1/applications/flights/state/routes"
    for key, flights in ENCODED.items():
        answer = plane.get(f"{state}/keys/{key}")
        expected = [None if part == "%00" else part for part in key.split(",")]
        assert (list(answer["key"].values()), answer["value"]) == (expected, {"flights": flights})
        assert plane.get(f"{state}/keys", key=key) == answer
        assert plane.get(f"{state}/keys/{key}", isolation="read_uncommitted")["value"] == {"flights": flights}
        assert plane.get(f"{state}/keys/{key}", epoch=1)["value"] == {"flights": flights // 2}
        blame = plane.get(f"{state}/blame", key=key)
        assert (blame["key"], blame["change"]["epoch"]) == (answer["key"], 2)
        history = plane.get(f"{state}/history", key=key)["items"]
        assert [item["new"]["flights"] for item in history] == [flights, flights // 2]
    keys = [{"origin": None, "day": None}, {"origin": "\0", "day": None}, {"origin": "x", "day": None}]
    for options in ({}, {"epoch": 2}):
        answer = plane.client.post(f"{state}/lookup", json={"keys": keys, **options}).json()
        assert answer["values"] == [{"flights": 6}, {"flights": 8}, None]
    by_date = {"keys": [{"origin": None, "day": "2013-01-31"}, {"origin": None, "day": None}]}
    assert plane.client.post(f"{state}/lookup", json=by_date).json()["values"] == [{"flights": 4}, {"flights": 6}]
    places = plane.get("/v1/applications/flights/state/places/keys/%00")
    assert places["entries"] == [{"airport": "JFK", "late": 2}, {"airport": "LAX", "late": 2}]
    problem = plane.client.get("/v1/applications/flights/state/places/keys/N1,%00")
    assert (problem.status_code, "'airport' takes no nulls" in problem.json()["detail"]) == (422, True)


def test_nulls_come_first_in_scans_and_appear_in_differences(plane: Plane, with_nulls: StateDriver) -> None:
    scan = "/v1/applications/flights/state/routes/scan"
    order = [(None, None), (None, "2013-01-31"), ("\0", None), ("JFK", None), ("JFK", "2013-01-31")]

    def keys(**query: Any) -> list[tuple[Any, ...]]:
        found, cursor = [], None
        while True:
            page = plane.get(scan, **query, **({} if cursor is None else {"cursor": cursor}))
            found += [tuple(item["key"].values()) for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    for when in ({}, {"epoch": 1}):
        assert keys(limit=2, **when) == order
        assert keys(prefix="%00", **when) == order[:2]
        assert keys(prefix="%00,%00", **when) == order[:1]
        assert keys(prefix="JFK,%00", **when) == order[3:4]
        assert keys(prefix="J*", **when) == order[3:]
    branch = with_nulls.driver.point.branch
    for form, status in ((FORM, 200), (FORM - 1, 400)):
        cursor = signed(plane, scan, branch, 2, form, base64.b64encode(b"\0").decode())
        assert plane.client.get(scan, params={"cursor": cursor}).status_code == status
    problem = plane.client.get(scan, params={"prefix": "%00*"})
    assert (problem.status_code, "has no beginning" in problem.json()["detail"]) == (422, True)
    rows = plane.get("/v1/applications/flights/snapshots/1/diff/routes", to="2")["items"]
    assert [tuple(row["key"].values()) for row in rows] == order


def test_null_keys_are_accepted_by_client_and_command_line(
    plane: Plane, with_nulls: StateDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = plane.settings.admin_token_file.read_text().strip()
    state = Client(plane.settings.url, token=token).application("flights").state("routes")
    assert state.get("JFK", None).value == {"flights": 2}
    assert state.get(None, date(2013, 1, 31), epoch=1).value == {"flights": 2}
    assert state.blame(None, None).change.new == {"flights": 6}
    assert len(state.history(None, None).items) == 2
    assert [tuple(row.key.values()) for row in state.scan_all(None, limit=1)] == [(None, None), (None, "2013-01-31")]
    assert state.lookup([{"origin": "\0", "day": None}]).values == [{"flights": 8}]
    with pytest.raises(InvalidKey, match="lookup"):
        state.get("\0", None)
    monkeypatch.setenv("EPOCHAL_URL", plane.settings.url)
    monkeypatch.setenv("EPOCHAL_TOKEN", token)
    code, output = epochal("get", "flights", "routes", "%00,2013-01-31")
    assert (code, output.split()[:2], output.split()[-1]) == (0, ["null,", "2013-01-31"], "4")
    assert "6" in epochal("get", "flights", "routes", "%00,%00", "--history")[1]
    code, output = epochal("scan", "flights", "routes", "%00")
    assert (code, output.count("null"), "JFK" in output) == (0, 3, False), output
