"""Event streams and logs over a real socket."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.client import Client
from epochal.contracts.catalog import EpochCounts, EpochTerms, Failure, ShownDue
from epochal.contracts.measurements import DriverReport, Moment, PlacementReport, StragglerMove
from epochal.service.api import events as event_routes
from epochal.service.runtime.events import hub as hubs
from epochal.service.runtime.logs.files import log_path
from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane


@dataclass(frozen=True)
class Event:
    id: int
    kind: str
    data: dict[str, Any]


@contextmanager
def listening(client: httpx.Client, last_event_id: int | None = None, name: str = "flights") -> Iterator[Iterator[str]]:
    headers = {} if last_event_id is None else {"Last-Event-ID": str(last_event_id)}
    with client.stream("GET", f"/v1/applications/{name}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer.iter_lines()


def take(lines: Iterator[str], count: int) -> list[Event]:
    found: list[Event] = []
    fields: dict[str, str] = {}
    for line in lines:
        if line == "" and "data" in fields:
            found.append(Event(int(fields["id"]), fields["event"], json.loads(fields["data"])))
            if len(found) == count:
                break
        elif ": " in line and not line.startswith(":"):
            name, _, text = line.partition(": ")
            fields[name] = text
        if line == "":
            fields = {}
    return found


def test_events_are_streamed_and_repeated_after_a_reconnect(plane: Plane) -> None:
    plane.application()
    plane.application("other")
    driver, other = plane.driver(), plane.driver("other")
    with listening(plane.client) as lines:
        driver.running()
        other.running()
        other.epoch()
        driver.epoch()
        events = take(lines, 5)
    assert {event.data["application"] for event in events} == {"flights"}
    assert [event.data["state"] for event in events if event.kind == "epoch"] == ["started", "prepared", "committed"]
    assert [event.id for event in events] == sorted({event.id for event in events})
    with listening(plane.client, last_event_id=events[1].id) as lines:
        assert take(lines, 3) == events[2:]
    with plane.client.stream("GET", "/v1/applications/flights/events", params={"after": events[1].id}) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert take(answer.iter_lines(), 3) == events[2:]
    headers = {"Last-Event-ID": str(events[3].id)}  # of a browser that reconnects to the same address
    path, parameters = "/v1/applications/flights/events", {"after": events[0].id}
    with plane.client.stream("GET", path, params=parameters, headers=headers) as answer:
        assert take(answer.iter_lines(), 1) == events[4:]
    with plane.client.stream("GET", "/v1/events", params={"after": f"flights/{events[3].id}"}) as answer:
        ids = (line for line in answer.iter_lines() if line.startswith("id: flights/"))
        assert next(ids) == f"id: flights/{events[4].id}"
    assert plane.client.get(path, params={"after": 2**63}).status_code == 422
    assert plane.client.get("/v1/events", params={"after": "flights"}).status_code == 422


def test_a_moved_straggler_is_one_event(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    driver.running()
    moves = [
        StragglerMove(operator="totals", subtask=subtask, epoch=9, origin="a", destination="b") for subtask in range(2)
    ]
    for number, reported in enumerate((moves[:1], moves[:1], moves), 1):
        placement = PlacementReport(epoch=number + 8, moved_stragglers=tuple(reported))
        driver.catalog.report(DriverReport(number=number, moment=Moment(placement=placement)))
    with plane.client.stream(
        "GET", "/v1/applications/flights/events", params={"kind": "straggler"}, headers={"Last-Event-ID": "0"}
    ) as answer:
        events = take(answer.iter_lines(), 2)
    expected = [{"application": "flights", "project": "default", **move.model_dump()} for move in moves]
    assert [{**event.data, "at": None} for event in events] == [{**each, "at": None} for each in expected]
    found = plane.get("/v1/applications/flights/placement")["moved_stragglers"]
    assert found == [move.model_dump() for move in moves]


def test_repeated_calls_publish_one_event(plane: Plane) -> None:
    plane.application()
    driver = plane.driver()
    manifest, failure = driver.manifest(1), Failure(type="author-error", message="no")
    for _ in range(2):
        driver.catalog.open_epoch(1, None)
    for _ in range(2):
        driver.catalog.prepare_epoch(1, None, manifest, EpochCounts())
    for _ in range(2):
        driver.catalog.commit_epoch(1)
    for _ in range(2):
        driver.catalog.open_epoch(2, manifest.key)
    for _ in range(2):
        driver.catalog.abort_epoch(2, failure)
    driver.running()
    with plane.client.stream(
        "GET", "/v1/applications/flights/events", params={"kind": "epoch"}, headers={"Last-Event-ID": "0"}
    ) as answer:
        events = take(answer.iter_lines(), 5)
    assert [event.data["state"] for event in events] == ["started", "prepared", "committed", "started", "aborted"]


def test_one_stream_contains_events_of_all_chosen_applications(plane: Plane) -> None:
    for name in ("flights", "other", "third"):
        plane.application(name)
    drivers = [plane.driver(name) for name in ("flights", "other", "third")]
    client = Client(plane.settings.url, plane.admin_token)
    with (
        client,
        plane.client.stream(
            "GET", "/v1/events", params={"kind": "epoch", "application": ["flights", "other"]}
        ) as answer,
    ):
        for driver in drivers:
            driver.running()
            driver.epoch()
        lines = [line for line in itertools.islice(answer.iter_lines(), 2 + 6 * 4) if line.startswith("id: ")]
        ids = [line.removeprefix("id: ") for line in lines]
        assert [id.partition("/")[0] for id in ids] == ["flights"] * 3 + ["other"] * 3
        again = client.events(ids[1])
        kinds = [next(again) for _ in range(2)]
    assert (kinds[0].id, kinds[0].data["state"], kinds[1].data["application"]) == (ids[2], "committed", "other")
    check_problem(plane.client.get("/v1/events", headers={"Last-Event-ID": "5"}), 422, "invalid-request")
    check_problem(plane.client.get("/v1/events", params={"kind": "other"}), 422, "invalid-request")
    check_problem(plane.as_bearer(None).get("/v1/events"), 401, "unauthenticated")


def test_epoch_events_contain_dropped_rows_and_the_next_due_time(plane: Plane) -> None:
    plane.application()
    driver, at = plane.driver(), datetime(2026, 5, 1, 12, tzinfo=UTC)
    counts = EpochCounts(late_rows={"hourly": 2}, rejected_rows={"at": 1}, dropped_timers={"reminders": 3})
    due = ShownDue(at=at, operator="reminders", clock="processing", until=at)
    with listening(plane.client) as lines:
        driver.catalog.open_epoch(1, None)
        driver.catalog.prepare_epoch(1, None, driver.manifest(1), counts, EpochTerms(next_due=due))
        driver.catalog.commit_epoch(1)
        *_, prepared, committed = (event.data for event in take(lines, 3))
    for data in (prepared, committed):
        assert (data["late_rows"], data["rejected_rows"]) == ({"hourly": 2}, {"at": 1})
        assert data["dropped_timers"] == {"reminders": 3}
        assert data["next_due"] == due.model_dump(mode="json")


def test_an_idle_stream_sends_heartbeats(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(hubs, "POLL_SECONDS", 0.1)
    plane.application()
    with listening(plane.client) as lines:
        comments = (line for line in lines if line.startswith(": "))
        assert next(comments) == next(comments) == ": still here"


def test_events_of_an_unknown_application_are_not_found(plane: Plane) -> None:
    assert plane.client.get("/v1/applications/unknown/events").status_code == 404
    plane.application()
    assert plane.client.get("/v1/applications/flights/events", headers={"Last-Event-ID": "x"}).status_code == 422


LOGS = "/v1/applications/flights/logs"


def write(plane: Plane, attempt: int, text: str) -> None:
    execution = plane.get("/v1/applications/flights")["execution"]
    path = log_path(plane.settings.logs_directory, "flights", execution, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        log.write(text)


def test_logs_return_the_last_lines_of_an_attempt(plane: Plane) -> None:
    plane.application(start=False)
    assert plane.client.get(LOGS).status_code == 404
    plane.post("/v1/applications/flights/start")
    first = plane.driver()
    assert plane.client.get(LOGS).text == ""
    write(plane, first.attempt, "".join(f"line {number}\n" for number in range(1000)))
    assert plane.client.get(LOGS, params={"tail": 2}).text == "line 998\nline 999\n"
    assert plane.client.get(LOGS).text.count("\n") == 200
    first.catalog.finish(Failure(type="source-error", message="lost"))
    second = plane.driver()
    write(plane, second.attempt, "second\n")
    assert plane.client.get(LOGS).text == "second\n"
    assert plane.client.get(LOGS, params={"tail": 1, "attempt": first.attempt}).text == "line 999\n"
    assert plane.client.get(LOGS, params={"attempt": 99}).status_code == 404
    assert plane.client.get(LOGS, params={"tail": -1}).status_code == 422


def test_logs_of_earlier_executions_are_found_by_branch_and_attempt(plane: Plane) -> None:
    plane.application()
    first = plane.driver()
    write(plane, first.attempt, "first execution\n")
    branch = plane.get("/v1/applications/flights/executions")["items"][0]["branch"]
    plane.post("/v1/applications/flights/stop")
    first.catalog.finish(None)
    plane.post("/v1/applications/flights/start")
    second = plane.driver()
    write(plane, second.attempt, "second execution\n")
    for asked in ({"attempt": first.attempt}, {"attempt": first.attempt, "branch": branch}):
        assert plane.client.get(LOGS, params=asked).text == "first execution\n"
        assert plane.client.get(LOGS, params={**asked, "follow": True}).text == "first execution\n"
    assert plane.client.get(LOGS, params={"attempt": second.attempt, "branch": branch}).text == "second execution\n"
    refused = plane.client.get(LOGS, params={"attempt": first.attempt, "branch": "another"})
    assert refused.status_code == 404 and "no attempt 1 on branch 'another'" in refused.json()["detail"]


def test_following_logs_continues_with_the_next_attempt(plane: Plane) -> None:
    plane.application()
    first = plane.driver()
    write(plane, first.attempt, "one\n")

    def continue_writing() -> None:
        time.sleep(0.5)
        write(plane, first.attempt, "two\n")
        first.catalog.finish(Failure(type="source-error", message="lost"))
        second = plane.driver()
        write(plane, second.attempt, "three\n")

    thread = threading.Thread(target=continue_writing)
    with plane.client.stream("GET", LOGS, params={"follow": True}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "one"
        thread.start()
        assert [next(lines), next(lines)] == ["two", "three"]
    thread.join()
    # Following an ended attempt by its number ends with its log.
    whole = plane.client.get(LOGS, params={"follow": True, "attempt": first.attempt})
    assert whole.text == "one\ntwo\n"
