"""Requests meant to break what reads them: nesting and numbers without bounds, characters that are obeyed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epochal.wire.problems import Problem
from tests.service.conftest import Plane

DEEP = b"[" * 200_000
OBJECTS = b'{"a":' * 200_000
HUGE = b"9" * 100_000
BODIES = {
    "nested lists": DEEP,
    "nested lists that end": DEEP + b"]" * 200_000,
    "nested objects": OBJECTS + b"1" + b"}" * 200_000,
    "a huge integer": b'{"name": "a", "artifact": "b", "configuration": {"parallelism": %s}}' % HUGE,
    "a huge exponent": b'{"name": "a", "artifact": "b", "configuration": {"epoch_interval_seconds": 1e999999999}}',
    "no number": b'{"name": "a", "artifact": "b", "configuration": {"epoch_interval_seconds": NaN}}',
    "a lone surrogate": rb'{"name": "\ud800", "artifact": "b"}',
    "deep parameters": b'{"name": "a", "artifact": "%s", "parameters": {"x": %s}}'
    % (b"0" * 64, b"[" * 50_000 + b"]" * 50_000),
    "NUL": rb'{"name": "a\u0000", "artifact": "b", "parameters": {"a\u0000": "\u0000"}}',
}
PATHS = [
    "/v1/applications",
    "/v1/tokens",
    "/v1/webhooks",
    "/v1/applications/flights/state/counts/lookup",
    "/v1/applications/flights/upgrade",
    "/v1/applications/flights/entries/e/call",
    "/v1/applications/flights/queries",
]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_no_one_can_read_is_refused(plane: Plane, body: bytes) -> None:
    plane.application()
    driver = plane.driver()
    bearer = {"Authorization": f"Bearer {driver.ticket.token}"}
    internal = f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}"
    calls: list[tuple[str, dict[str, str]]] = [(path, {}) for path in PATHS]
    calls += [
        (f"{internal}/{call}", bearer) for call in ("epochs", "heartbeat", "report", "epochs/1/prepare", "finish")
    ]
    for path, headers in calls:
        answer = plane.client.post(path, content=body, headers={"Content-Type": "application/json", **headers})
        assert 400 <= answer.status_code < 500, f"{path}: {answer.status_code} {answer.text[:300]}"
        assert len(answer.content) < 2_000, path
        Problem.model_validate_json(answer.content)
    assert plane.get("/v1/applications/flights")["name"] == "flights"


OBEYED = ("\r\nSet-Cookie: x=1", "\u202egnp", "\x00", "\x1b[2J", "/b", "\\b", "\u2028", "\x85", "a" * 300)


@pytest.mark.parametrize("end", OBEYED, ids=ascii)
def test_what_is_obeyed_gets_into_no_name_and_no_header(plane: Plane, end: str) -> None:
    name = f"a{end}"
    named = [
        plane.client.post("/v1/artifacts", params={"filename": name}, content=b'# {"sinks": {}}'),
        plane.client.post("/v1/tokens", json={"name": name, "role": "viewer"}),
        plane.client.post("/v1/applications", json={"name": name, "artifact": "0" * 64}),
    ]
    assert [answer.status_code for answer in named] == [422, 422, 422]
    # What cannot be sent is not; what follows a line break is another header, and no part of an answer's.
    proposed = name.replace("\r\n", " ").replace("\0", "").encode()
    asked = plane.client.get("/v1/applications", headers={"X-Request-Id": proposed})
    for answer in (*named, asked):
        assert "set-cookie" not in answer.headers
        assert all(f"{key}{value}".isprintable() for key, value in answer.headers.items())


def test_of_a_key_that_comes_twice_one_value_is_taken_everywhere(plane: Plane) -> None:
    """What was checked is what is carried out: no other part of the control plane reads the body again."""
    artifact = plane.artifact()
    body = json.dumps({"name": "first", "artifact": artifact, "parameters": {"out": "/data/x"}, "start": False})
    twice = body[:-1] + ', "name": "second"}'
    answer = plane.client.post(
        "/v1/applications", content=twice, headers={"Content-Type": "application/json", "Idempotency-Key": "twice"}
    )
    assert (answer.status_code, answer.json()["name"]) == (201, "second")
    names: list[Any] = [item["name"] for item in plane.get("/v1/applications")["items"]]
    assert names == ["second"]
