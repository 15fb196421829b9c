"""Hostile bodies and names: unbounded nesting and numbers, control characters, duplicate keys."""

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
    "not a number": b'{"name": "a", "artifact": "b", "configuration": {"epoch_interval_seconds": NaN}}',
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
def test_malformed_bodies_are_refused(plane: Plane, body: bytes) -> None:
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


CONTROL_CHARACTERS = ("\r\nSet-Cookie: x=1", "\u202egnp", "\x00", "\x1b[2J", "/b", "\\b", "\u2028", "\x85", "a" * 300)


@pytest.mark.parametrize("end", CONTROL_CHARACTERS, ids=ascii)
def test_control_characters_are_refused_in_names_and_headers(plane: Plane, end: str) -> None:
    name = f"a{end}"
    named = [
        plane.client.post("/v1/artifacts", params={"filename": name}, content=b'# {"sinks": {}}'),
        plane.client.post("/v1/tokens", json={"name": name, "role": "viewer"}),
        plane.client.post("/v1/applications", json={"name": name, "artifact": "0" * 64}),
    ]
    assert [answer.status_code for answer in named] == [422, 422, 422]
    # HTTP cannot send NUL, and after a line break another header would begin.
    proposed = name.replace("\r\n", " ").replace("\0", "").encode()
    listed = plane.client.get("/v1/applications", headers={"X-Request-Id": proposed})
    for answer in (*named, listed):
        assert "set-cookie" not in answer.headers
        assert all(f"{key}{value}".isprintable() for key, value in answer.headers.items())


def test_the_last_of_duplicate_keys_is_both_checked_and_used(plane: Plane) -> None:
    """No part of the control plane may read another value than the checked one."""
    artifact = plane.artifact()
    body = json.dumps({"name": "first", "artifact": artifact, "parameters": {"out": "/data/x"}, "start": False})
    twice = body[:-1] + ', "name": "second"}'
    answer = plane.client.post(
        "/v1/applications", content=twice, headers={"Content-Type": "application/json", "Idempotency-Key": "twice"}
    )
    assert (answer.status_code, answer.json()["name"]) == (201, "second")
    names: list[Any] = [item["name"] for item in plane.get("/v1/applications")["items"]]
    assert names == ["second"]
