"""Calls of entries over HTTP, answered by the real engine without Spark."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from typer.testing import CliRunner

from epochal.cli.main import app
from epochal.client import Client
from epochal.errors import InvalidArguments, NotYetCommitted, RequestIdReused
from tests.service.conftest import Plane
from tests.service.entry_application import RAW, Application


@pytest.fixture
def store(plane: Plane) -> Application:
    application = Application(plane)
    application.create()
    return application


@pytest.mark.claim("SDG, table 1, low latency")
def test_a_call_is_answered_by_the_epoch_that_processed_it(store: Application) -> None:
    with store.running():
        first = store.call(request_id="one", arguments={"key": "x", "value": "1"})
        assert (first["state"], first["value"], first["error"]) == ("answered", [None, 1], None)
        many = [{"request_id": f"r{number}", "arguments": {"key": "x"}} for number in range(50)]
        found = store.call(calls=[*many, {"arguments": {"key": "missing"}}])["calls"]
        assert [answer["request_id"] for answer in found[:-1]] == [call["request_id"] for call in many]
        assert [answer["value"] for answer in found[:-1]] == [["1", number + 2] for number in range(50)]
        assert (found[-1]["error"], found[-1]["value"]) == ("unknown key missing", [None, 1])
        assert found[-1]["epoch"] >= first["epoch"] and found[-1]["branch"] == first["branch"]
        answer = store.call(entry="note", arguments={"key": "x"})
        assert (answer["state"], answer["value"], answer["error"]) == ("answered", None, None)


def test_an_answer_that_is_not_json_is_an_error_of_its_call_only(store: Application) -> None:
    arguments = [{"key": key, "value": "1"} for key in RAW if not key.endswith("error")]
    with store.running():
        found = store.call(calls=[{"arguments": each} for each in [*arguments, {"key": "x", "value": "1"}]])["calls"]
        *wrong, right = [(answer["state"], answer["value"], answer["error"]) for answer in found]
        message = "The application answered with a value that is not JSON."
        assert wrong == [("answered", None, message)] * len(arguments)
        assert right == ("answered", [None, 1], None)
        # An error of the application takes precedence.
        own = store.call(arguments={"key": "half, and an error"})
        assert (own["value"], own["error"]) == (None, "unknown key half, and an error")


def test_a_repeated_request_id_is_the_same_call(store: Application) -> None:
    call = {"request_id": "one", "arguments": {"key": "x", "value": "1"}}
    assert store.call(202, wait=0, **call)["state"] == "waiting"
    assert store.headers["location"] == "/v1/applications/store/entries/exchange/calls/one"
    assert store.look("one", 202, wait=0)["state"] == "waiting"
    store.call(202, wait=0, calls=[call, {"request_id": "two", "arguments": {"key": "x"}}])
    with store.running():
        first = store.look("one")
        assert store.call(**call) == first | {"epoch": store.look("one")["epoch"]}
        assert store.look("two")["value"] == ["1", 2]
        # Equal times in different notations are equal arguments.
        store.call(request_id="timed", arguments={"key": "y", "value": "1", "at": "2026-01-01T02:00:00+02:00"})
        store.call(request_id="timed", arguments={"value": "1", "key": "y", "at": "2026-01-01T00:00:00Z"})
        problem = store.call(409, request_id="one", arguments={"key": "x", "value": "2"})
        assert problem["type"].endswith("request-id-reused")
        assert store.call(409, entry="note", request_id="one", arguments={"key": "x"})["type"] == problem["type"]
    for entry, request_id in (("exchange", "other"), ("note", "one")):
        assert store.look(request_id, 404, entry)["type"].endswith("not-found")


@pytest.mark.long  # tests/unit/test_entries.py and test_inboxes.py cover its parts
def test_calls_are_processed_once_although_drivers_die(store: Application) -> None:
    for number in range(3):
        store.call(202, wait=0, request_id=f"early-{number}", arguments={"key": "x", "value": "v"})
        with store.running(epochs=1):
            assert store.look(f"early-{number}")["value"][1] == number + 1
    with store.running():
        assert store.call(arguments={"key": "x"})["value"] == ["v", 4]
        assert [store.look(f"early-{number}")["value"][1] for number in range(3)] == [1, 2, 3]


def test_a_fork_begins_with_an_empty_inbox(store: Application) -> None:
    call = {"request_id": "one", "arguments": {"key": "x", "value": "1"}}
    with store.running():
        assert store.call(**call)["value"] == [None, 1]
    store.plane.post("/v1/applications/store/fork", expect=201, name="forked", shadow=True)
    forked = Application(store.plane, "forked")
    assert forked.look("one", 404)["type"].endswith("not-found")
    # The state of the fork contains the answer to the call with this id in the parent.
    assert forked.call(202, wait=0, **call)["state"] == forked.call(202, wait=0.2, **call)["state"] == "waiting"
    with forked.running():
        assert forked.call(**call)["value"] == ["1", 2]
        assert forked.look("one")["branch"].startswith("forked-")
    assert store.call(wait=0, **call)["value"] == [None, 1]


@pytest.mark.long  # tests/unit/test_entries.py and test_inboxes.py cover its parts
def test_concurrent_calls_are_each_processed_once(store: Application) -> None:
    def call(number: int) -> list[Any]:
        return list(store.call(arguments={"key": "x", "value": str(number)})["value"])

    with store.running(), ThreadPoolExecutor(8) as threads:
        found = list(threads.map(call, range(40)))
    assert sorted(calls for _, calls in found) == list(range(1, 41))


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"arguments": {}}, "invalid-arguments", "A call of entry 'exchange': argument 'key' (string) is missing"),
    ({"arguments": {"key": None}}, "invalid-arguments", "argument 'key' (string) is null"),
    ({"arguments": {"key": 5}}, "invalid-arguments", "Column 'key' (string) takes a string, not 5"),
    ({"arguments": {"key": "x", "kez": 1}}, "invalid-arguments", "there is no argument 'kez'; it takes key, value"),
    ({"arguments": {"key": "x", "count": 2**63}}, "invalid-arguments", "'count' (bigint) takes an integer from -9"),
    ({"arguments": {"key": "x", "count": 1.0}}, "invalid-arguments", "'count' (bigint) takes an integer"),
    ({"arguments": {"key": "x", "count": True}}, "invalid-arguments", "'count' (bigint) takes an integer"),
    ({"arguments": {"key": "x", "at": "noon"}}, "invalid-arguments", "'at' (timestamp) takes a time with its zone"),
    ({"arguments": {"key": "x" * 70_000}}, "invalid-arguments", "bytes of JSON; the maximum is 65536"),
    ({"calls": [{"arguments": {"key": "x"}}, {"arguments": {"key": 1}}]}, "invalid-arguments", "Call 1, entry"),
    (
        {"calls": [{"request_id": "a", "arguments": {"key": "x"}}] * 2},
        "invalid-arguments",
        "Call 1, entry 'exchange': duplicate request id 'a'",
    ),
    ({"calls": []}, "invalid-request", "calls"),
    ({"calls": [{"arguments": {"key": "x"}}] * 1001}, "invalid-request", "calls"),
    (
        {"calls": [{"arguments": {"key": "x"}}], "arguments": {"key": "x"}},
        "invalid-request",
        "one call, or several",
    ),
    ({"request_id": "no spaces", "arguments": {"key": "x"}}, "invalid-request", "request_id"),
    ({"argument": {"key": "x"}}, "invalid-request", "argument"),
]


def test_invalid_calls_are_refused(store: Application) -> None:
    for body, slug, detail in REFUSED:
        problem = store.call(422, **body)
        assert problem["type"].endswith(f":{slug}") and detail in problem["detail"], problem["detail"]
    with store.running():
        assert store.call(arguments={"key": "x"})["value"] == [None, 1]


def test_entries_are_listed_with_their_arguments(store: Application) -> None:
    exchange, note = store.plane.get("/v1/applications/store/entries")["items"]
    assert exchange["arguments"] == {
        "type": "object",
        "properties": {
            "key": {"type": "string"},
            "value": {"type": "string"},
            "at": {"type": "string", "format": "date-time"},
            "count": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        },
        "required": ["key"],
        "additionalProperties": False,
    }
    assert (exchange["returns"], exchange["description"]) == ("array<string>", "Puts a value.")
    assert (note["name"], note["returns"], note["table"]) == ("note", None, "note_answers")
    problem = store.call(404, entry="exchang")
    assert "no entry 'exchang'. Did you mean 'exchange'?" in problem["detail"]


def test_a_call_needs_an_operator_and_is_not_audited(store: Application) -> None:
    reader = store.plane.as_bearer(store.plane.token("viewer"))
    path = "/v1/applications/store/entries/exchange"
    assert reader.post(path, json={"arguments": {"key": "x"}}).status_code == 403
    assert reader.get("/v1/applications/store/entries").status_code == 200
    store.call(202, wait=0, arguments={"key": "x"})
    noted = [entry["action"] for entry in store.plane.get("/v1/audit")["items"]]
    assert not [action for action in noted if "entries" in action]


def test_calls_are_refused_when_the_inbox_is_full(store: Application) -> None:
    store.plane.control.calls._intake._most_waiting = 3
    store.call(202, wait=0, calls=[{"arguments": {"key": "x"}}] * 3)
    problem = store.call(429, wait=0, arguments={"key": "x"})
    assert problem["type"].endswith("inbox-full") and store.headers["retry-after"] == "2"


def test_the_client_waits_for_answers_and_reports_a_timeout(store: Application) -> None:
    with Client(store.plane.settings.url, store.plane.token("author")) as client:
        exchange = client.application("store").entries["exchange"]
        assert exchange.call(key="x", value="1", request_id="one", wait_seconds=0).state == "waiting"
        with pytest.raises(NotYetCommitted, match=r"1 of 1 calls .* not answered within 0.1 s.* 'one'"):
            exchange.call({"key": "x", "value": "1"}, request_id="one", wait_seconds=0.1)
        assert exchange.answer("one").state == "waiting"
        with pytest.raises(InvalidArguments, match="argument 'key'"):
            exchange.call()
        with pytest.raises(RequestIdReused):
            exchange.call(key="y", request_id="one")
        many = [{"arguments": {"key": "x"}, "request_id": f"r{number}"} for number in range(1500)]
        assert {answer.state for answer in exchange.call_many(many, wait_seconds=0)} == {"waiting"}
        with store.running():
            found = exchange.call_many(many, wait_seconds=30)
            assert [answer.request_id for answer in found] == [call["request_id"] for call in many]
            assert [answer.value for answer in found] == [["1", number + 2] for number in range(1500)]
            assert exchange.answer("one", wait_seconds=30).value == [None, 1]
        assert [entry.name for entry in client.application("store").entries.list()] == ["exchange", "note"]


def test_the_call_command_calls_an_entry(store: Application) -> None:
    environment = {"EPOCHAL_URL": store.plane.settings.url, "EPOCHAL_TOKEN": store.plane.token("author")}

    def epochal(*arguments_given: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, list(arguments_given), env=environment)
        assert done.exit_code == code, done.output
        return done.output

    assert [entry["name"] for entry in json.loads(epochal("entries", "store", "--json"))["items"]] == [
        "exchange",
        "note",
    ]
    with store.running():
        put = ["-a", "key=x", "-a", "value=5", "-a", "count=7"]
        assert "[null, 1]  epoch" in epochal("call", "store", "exchange", *put)
        assert json.loads(epochal("call", "store", "exchange", "-a", "key=x", "--json"))["value"] == ["5", 2]
