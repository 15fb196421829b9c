"""Standing queries over HTTP: validation, numbering, commands for the driver, and lists read from snapshots."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from epochal.contracts.catalog import Change, Failure, QueryCommand
from epochal.contracts.conditions import BEGINNING, Clock, EpochConditions, EpochQueries, as_datetime
from epochal.service.commands import standing_queries as queries
from epochal.snapshots import layout
from epochal.snapshots.store import SnapshotStore
from epochal.standing_queries.active import ActiveQueries, StandingQuery
from epochal.standing_queries.query import Query
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from tests.service.conftest import Driver, Plane

PATH = "/v1/applications/flights/queries"
COUNT = "SELECT device, count(*) AS n GROUP BY device WINDOW '5 minutes'"
NODES = [
    {"id": 7, "name": "events", "type": "source", "columns": {"device": "string", "at": "timestamp"}},
    {
        "id": 8,
        "name": "queries",
        "type": "standing_queries",
        "inputs": [7],
        "description": {"windows": ["1 minute", "1 day"], "limit": 2, "groups": 100, "keep": "1 day"},
    },
]


@pytest.fixture
def driver(plane: Plane) -> Driver:
    plane.application(artifact=plane.artifact(nodes=NODES))
    driver = plane.driver()
    driver.running()
    return driver


def epoch(plane: Plane, driver: Driver, queries: ActiveQueries, *changes: Change) -> int:
    """An epoch that runs with these queries."""
    data, path = queries.encode(), layout.standing_queries(driver.next_key)
    SnapshotStore(plane.settings.store_url).write(path, data)
    sha256 = hashlib.sha256(data).hexdigest()
    chosen = EpochQueries(path=path, sha256=sha256, bytes=len(data), rows=len(queries.queries), through=queries.through)
    return driver.epoch(conditions=EpochConditions(clock=Clock(epoch_time=0), queries=chosen), changes=changes)


def carried_out(plane: Plane, driver: Driver, before: ActiveQueries, since: int = BEGINNING) -> ActiveQueries:
    """Carry out all waiting commands in one epoch, as the engine does. ``since``: the start of added queries."""
    found, commands = before, []
    for directive in driver.running():
        assert directive.kind == "query"
        command = QueryCommand.model_validate(directive.arguments)
        commands.append(directive.id)
        if command.kind == "add":
            assert command.bound is not None and command.operator is not None and command.text is not None
            query = Query.of(command.bound)
            added = StandingQuery(command.query, command.operator, command.text, query, command.by, since, 1)
            found = ActiveQueries(command.number, found.put(added).queries)
        elif command.kind == "drop":
            found = ActiveQueries(command.number, found.without([command.query]).queries)
    epoch(plane, driver, found)
    for id in commands:
        driver.catalog.complete(id, driver.head)
    return found


def test_query_is_added_listed_and_dropped(plane: Plane, driver: Driver) -> None:
    assert plane.get(PATH) == {"items": [], "epoch": None}
    operations = [plane.post(PATH, query=COUNT), plane.post(PATH, query=COUNT, expires_after="7 days")]
    active = carried_out(plane, driver, ActiveQueries())
    found = [plane.get(f"/v1/operations/{each['id']}") for each in operations]
    assert [(each["state"], each["result"]["query"], each["result"]["epoch"]) for each in found] == [
        ("succeeded", 1, 1),
        ("succeeded", 2, 1),
    ]
    listed = plane.get(PATH)
    assert (listed["epoch"], [item["id"] for item in listed["items"]]) == (1, [1, 2])
    one = plane.get(f"{PATH}/1")
    assert (one["query"], one["owner"], one["state"], one["since"]) == (COUNT, "admin", "active", None)
    plane.post(f"{PATH}/1/drop")
    active = carried_out(plane, driver, active)
    assert [item["id"] for item in plane.get(PATH)["items"]] == [2]
    assert plane.client.get(f"{PATH}/1").status_code == 404
    # An id is the number of a command, and is never reused: 3 was the drop.
    plane.post(PATH, query=COUNT)
    carried_out(plane, driver, active)
    assert [item["id"] for item in plane.get(PATH)["items"]] == [2, 4]


def test_query_expires_by_the_clock_of_the_database(
    plane: Plane, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epoch times are compared with this clock; the clock of a control plane may differ."""
    moment = datetime(2031, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(queries, "database_now", lambda session: moment)
    plane.post(PATH, query=COUNT, expires_after="7 days")
    (directive,) = driver.running()
    expires_at = QueryCommand.model_validate(directive.arguments).expires_at
    assert expires_at is not None and as_datetime(expires_at) == moment + timedelta(days=7)


def test_refused_query_reports_reason_and_position(plane: Plane, driver: Driver) -> None:
    answer = plane.client.post(PATH, json={"query": "SELECT count(*) AS n WHERE country = 'SE' WINDOW '5 minutes'"})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (422, "urn:epochal:problem:query-refused")
    assert (problem["reason"], problem["position"]) == ("unknown-column", 28)
    assert "The columns are: device, at." in problem["detail"]
    assert driver.running() == []


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        ({"query": COUNT, "operator": "others"}, 404, "not-found"),
        ({"query": COUNT, "expires_after": "soon"}, 422, "invalid-option"),
        ({"query": COUNT, "expires_after": "5000000 days"}, 422, "invalid-option"),
        ({"query": "SELECT count(*) AS n WINDOW '1 second'"}, 422, "query-refused"),
        ({"query": "x" * 5_000}, 422, "query-refused"),
    ],
)
def test_invalid_query_requests_are_refused(
    plane: Plane, driver: Driver, body: dict[str, Any], status: int, slug: str
) -> None:
    answer = plane.client.post(PATH, json=body)
    assert (answer.status_code, answer.json()["type"]) == (status, f"urn:epochal:problem:{slug}")


def test_number_of_queries_is_limited_by_the_application(plane: Plane, driver: Driver) -> None:
    plane.post(PATH, query=COUNT)
    plane.post(PATH, query=COUNT)
    carried_out(plane, driver, ActiveQueries())
    answer = plane.client.post(PATH, json={"query": COUNT})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:epochal:problem:conflict")


def test_application_without_standing_queries_refuses_them(plane: Plane) -> None:
    plane.application()
    plane.driver().running()
    answer = plane.client.post(PATH, json={"query": COUNT})
    assert (answer.status_code, "stream.standing_queries(..)" in answer.json()["detail"]) == (404, True)


def test_waiting_commands_fail_when_the_application_stops(plane: Plane, driver: Driver) -> None:
    operations = plane.post(PATH, query=COUNT)
    (directive,) = driver.running()
    driver.catalog.complete(directive.id, None, Failure(type="conflict", message="It does not fit."))
    assert plane.get(f"/v1/operations/{operations['id']}")["error"]["detail"] == "conflict: It does not fit."
    later = plane.post(PATH, query=COUNT)
    driver.catalog.finish(None)
    assert plane.get(f"/v1/operations/{later['id']}")["state"] == "failed"
    answer = plane.client.post(PATH, json={"query": COUNT})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:epochal:problem:conflict")


def test_commands_are_decided_by_the_commit_of_their_epoch(plane: Plane, driver: Driver) -> None:
    """The driver may terminate before it reports the result."""
    operations = [plane.post(PATH, query=COUNT), plane.post(PATH, query=COUNT)]
    waits = plane.post(PATH, query=COUNT)
    refusal = {"type": "conflict", "message": "There are too many."}
    detail = {"added": [1], "carried_out": [1, 2], "refused": {"2": refusal}}
    epoch(plane, driver, ActiveQueries(through=2), Change(kind="queries", detail=detail))
    done, refused = (plane.get(f"/v1/operations/{each['id']}") for each in operations)
    assert (done["state"], done["result"]["query"], done["result"]["epoch"]) == ("succeeded", 1, 1)
    assert (refused["state"], refused["error"]["detail"]) == ("failed", "conflict: There are too many.")
    assert [directive.arguments["number"] for directive in driver.running()] == [3]
    driver.catalog.finish(None)
    assert plane.get(f"/v1/operations/{operations[0]['id']}") == done
    assert plane.get(f"/v1/operations/{waits['id']}")["state"] == "failed"


def test_command_line_adds_and_lists_queries(plane: Plane, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochal.cli.main import app

    monkeypatch.setenv("EPOCHAL_URL", str(plane.client.base_url))
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.client.headers["authorization"].removeprefix("Bearer "))
    runner = CliRunner()
    operations = runner.invoke(app, ["query", "add", "flights", COUNT, "--no-wait"])
    assert operations.exit_code == 0, operations.output
    carried_out(plane, driver, ActiveQueries())
    listed = runner.invoke(app, ["query", "list", "flights", "--json"])
    assert listed.exit_code == 0, listed.output
    assert COUNT in listed.output
    assert runner.invoke(app, ["query", "pause", "flights", "1", "--no-wait"]).exit_code == 0
    assert [directive.arguments["kind"] for directive in driver.running()] == ["pause"]


@pytest.mark.parametrize("kind", ["drop", "pause", "resume"])
def test_query_is_changed_only_by_its_owner_and_by_admins(plane: Plane, driver: Driver, kind: str) -> None:
    ada, bob = (plane.as_bearer(plane.token("author", name)) for name in ("ada", "bob"))
    with ada, bob:
        assert ada.post(PATH, json={"query": COUNT}).status_code == 202
        carried_out(plane, driver, ActiveQueries())
        refused = bob.post(f"{PATH}/1/{kind}")
        assert (refused.status_code, refused.json()["type"]) == (403, "urn:epochal:problem:forbidden")
        assert f"query 1 belongs to 'ada'; the token 'bob' may not {kind} it" in refused.json()["detail"]
        assert driver.running() == []
        assert ada.post(f"{PATH}/1/{kind}").status_code == 202
        assert plane.client.post(f"{PATH}/1/{kind}").status_code == 202
        assert [directive.arguments["by"] for directive in driver.running()] == ["ada", "admin"]


def test_rollback_restores_the_queries_and_reuses_no_id(plane: Plane, driver: Driver) -> None:
    plane.post(PATH, query=COUNT)
    active = carried_out(plane, driver, ActiveQueries())
    plane.post(PATH, query=COUNT)
    carried_out(plane, driver, active)
    assert [item["id"] for item in plane.get(PATH)["items"]] == [1, 2]
    waiting = plane.post(f"{PATH}/1/drop")
    rollback = "/v1/applications/flights/rollback"
    confirm = plane.post(rollback, 200, dry_run=True, epoch=1)["confirm"]
    plane.post(rollback, epoch=1, confirm=confirm)
    driver.catalog.finish(None)

    # A command that the driver has not carried out fails; it is not carried out on the other branch.
    assert plane.get(f"/v1/operations/{waiting['id']}")["state"] == "failed"
    successor = plane.driver()
    assert successor.point.branch != driver.point.branch
    assert successor.running() == []
    assert [item["id"] for item in plane.get(PATH)["items"]] == [1]
    # Id 2 was a query of the previous branch, and 3 the drop, so 4 is the next id.
    plane.post(PATH, query=COUNT)
    carried_out(plane, successor, active)
    assert [item["id"] for item in plane.get(PATH)["items"]] == [1, 4]


def test_fork_starts_with_the_queries_of_its_snapshot(plane: Plane, driver: Driver) -> None:
    plane.post(PATH, query=COUNT)
    active = carried_out(plane, driver, ActiveQueries())
    plane.post("/v1/applications/flights/fork", 201, name="copy", parameters={"out": "/data/copy"}, epoch=1)
    copy = "/v1/applications/copy/queries"
    (item,) = plane.get(copy)["items"]
    assert (item["id"], item["query"], item["owner"]) == (1, COUNT, "admin")
    forked = plane.driver("copy")
    forked.running()
    plane.post(f"{copy}/1/drop")
    plane.post(copy, query=COUNT)
    carried_out(plane, forked, active)
    assert [item["id"] for item in plane.get(copy)["items"]] == [3]
    assert [item["id"] for item in plane.get(PATH)["items"]] == [1]


def test_command_line_shows_the_first_epoch_and_window(
    plane: Plane, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from epochal.cli.main import app

    monkeypatch.setenv("EPOCHAL_URL", str(plane.client.base_url))
    monkeypatch.setenv("EPOCHAL_TOKEN", plane.client.headers["authorization"].removeprefix("Bearer "))
    epoch(plane, driver, ActiveQueries())
    driver.catalog.open_epoch(2, driver.head_key)
    operations = plane.post(PATH, query=COUNT)
    assert operations["progress"] == "waiting for the epoch after 2, which is running"
    driver.catalog.abort_epoch(2, Failure(type="test", message="It is over."))
    driver._next = 3

    with ThreadPoolExecutor(1) as other:
        submitted = other.submit(CliRunner().invoke, app, ["query", "add", "flights", COUNT])
        eventually(lambda: len(driver.running()) == 2)
        carried_out(plane, driver, ActiveQueries(), since=1_704_067_201_000_000)
        done = submitted.result(30)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "Query 2 of flights runs from epoch 3 on." in text
    assert "It answers windows from 2024-01-01 00:05:00 – 00:10:00 (UTC) on" in text
    assert plane.get(f"{PATH}/2")["first_window"] == {"start": "2024-01-01T00:05:00Z", "end": "2024-01-01T00:10:00Z"}
