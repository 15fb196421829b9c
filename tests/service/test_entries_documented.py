"""The table of refused calls in docs/reference/entries.md lists the real answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from epochal.declarations.entry import entry
from epochal.errors import OutcomeUnknown
from epochal.service.catalog.database import Database
from tests.kit.documented import rows_of, shows
from tests.service.conftest import Plane
from tests.service.listed_problems import listed_problems

CALLS = "/v1/applications/{name}/entries/{entry}"
GET = CALLS.format(name="store", entry="get")
ARGUMENTS = {"key": "JFK"}


@pytest.fixture
def store(plane: Plane) -> Plane:
    """A control plane with the application of the page, which does not run, so that calls wait."""
    entries = [
        entry("put", {"key": "string", "value": "string"}, (), None, ""),
        entry("get", {"key": "string"}, (), "string", "The value of a key."),
    ]
    described = [each.details() | {"table": each.table} for each in entries]
    plane.application("store", artifact=plane.artifact({"out": "files:/data/store"}, entries=described), parameters={})
    return plane


def calls(count: int, **more: Any) -> dict[str, Any]:
    return {"calls": [{"arguments": ARGUMENTS}] * count, **more}


def refused(store: Plane) -> Iterator[httpx.Response]:
    """Answers to invalid calls, at least one for each reason."""
    client = store.client
    yield store.as_bearer(store.token("viewer")).post(GET, json={"arguments": ARGUMENTS})
    yield client.post(CALLS.format(name="store", entry="gett"), json={"arguments": ARGUMENTS})
    yield client.get(f"{GET}/calls/order-18")
    assert client.post(f"{GET}?wait=0", json={"request_id": "order-17", "arguments": ARGUMENTS}).status_code == 202
    yield client.post(GET, json={"request_id": "order-17", "arguments": {"key": "LAX"}})
    yield client.post(GET, content=b" " * (8 * 2**20 + 1))
    for arguments in ({}, {"key": None}, {"kez": "JFK", **ARGUMENTS}, {"key": 7}, {"key": "x" * 2**16}):
        yield client.post(GET, json={"calls": [*calls(7)["calls"], {"arguments": arguments}]})
    yield client.post(GET, json={"calls": [{"request_id": "one", "arguments": ARGUMENTS}] * 2})
    for body in (calls(1, arguments=ARGUMENTS), calls(0), calls(1001), {"key": "JFK"}, {"request_id": "a b"}):
        yield client.post(GET, json=body)
    for seconds in (-1, 61):
        yield client.post(f"{GET}?wait={seconds}", json={"arguments": ARGUMENTS})
    store.control.calls._intake._most_waiting = 500
    full = client.post(GET, json=calls(500))
    assert full.headers["retry-after"] == "2"
    yield full
    one = {"request_id": "order-19", "arguments": ARGUMENTS}
    with commits_unanswered(store.control.database):
        yield client.post(GET, json=one)
    # Repeating the request determines its outcome and adds no call.
    assert client.post(f"{GET}?wait=0", json=one).status_code == 202
    assert calls_in_inbox(store) == ["order-17", "order-19"]
    with store.control.database.writing() as session:
        session.execute(text("ALTER TABLE inbox_calls RENAME TO renamed"))
    yield client.post(GET, json={"arguments": ARGUMENTS})


@contextmanager
def commits_unanswered(database: Database) -> Iterator[None]:
    """Commits take effect, but report an unknown outcome."""
    writing = database.writing

    @contextmanager
    def unanswered(*arguments: Any) -> Iterator[Session]:
        with writing(*arguments) as session:
            yield session
        raise OutcomeUnknown("The catalog did not answer a commit.")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "writing", unanswered)
        yield


def calls_in_inbox(store: Plane) -> list[str]:
    """The request ids of all calls."""
    with store.control.database.reading() as session:
        return list(session.scalars(text("SELECT request_id FROM inbox_calls ORDER BY request_id")))


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "0", text)


def test_the_documented_refusals_are_complete(store: Plane) -> None:
    document = store.client.get("/openapi.json").json()["paths"][CALLS]["post"]
    messages: dict[tuple[int, str], list[str]] = {}
    for answer in refused(store):
        problem = answer.json()
        key = answer.status_code, problem["type"].rpartition(":")[2]
        messages.setdefault(key, []).append(without_numbers(problem["detail"]))
    in_table = set()
    for status, _, example in rows_of("reference/entries.md", "### Refused calls"):
        for slug in re.findall(r"`([a-z-]+)`", status):
            in_table.add((int(status.split()[0]), slug))
            assert f"urn:epochal:problem:{slug}" in listed_problems(document, status.split()[0])
            for quote in re.findall(r"`([^`]+)`", example):
                assert shows(without_numbers(quote), messages[int(status.split()[0]), slug]), (quote, messages)
    assert in_table == messages.keys()


def test_a_thousand_calls_of_eight_kilobytes_are_accepted(store: Plane) -> None:
    call = {"arguments": {"key": ""}}
    call["arguments"]["key"] = "x" * (8 * 2**10 - len(json.dumps(call)))
    body = json.dumps({"calls": [call] * 1000})
    assert len(body) > 1000 * 8 * 2**10
    answer = store.client.post(f"{GET}?wait=0", content=body.encode())
    assert answer.status_code == 202 and len(answer.json()["calls"]) == 1000
