"""Roles of tokens: a token may make exactly the calls that its role permits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.wire.tokens import Role

if TYPE_CHECKING:
    from tests.service.conftest import Plane

ALLOWED = {
    Role.VIEWER: {"GET /v1/applications"},
    Role.OPERATOR: {"GET /v1/applications", "POST /v1/applications/flights/stop"},
    Role.AUTHOR: {"GET /v1/applications", "POST /v1/applications/flights/stop", "DELETE /v1/artifacts/" + "0" * 64},
    Role.ADMIN: {
        "GET /v1/applications",
        "POST /v1/applications/flights/stop",
        "DELETE /v1/artifacts/" + "0" * 64,
        "GET /v1/tokens",
    },
}


def allowed(plane: Plane, token: str) -> set[str]:
    """The calls that are not forbidden, out of those of an admin."""
    found = set()
    with plane.as_bearer(token) as client:
        for call in ALLOWED[Role.ADMIN]:
            method, path = call.split()
            status = client.request(method, path).status_code
            assert status != 401, call
            if status != 403:
                found.add(call)
    return found


@pytest.mark.parametrize("role", Role)
def test_role_permits_its_calls(plane: Plane, role: Role) -> None:
    assert allowed(plane, plane.token(role.value)) == ALLOWED[role]


def test_rotated_token_keeps_its_role(plane: Plane) -> None:
    made = plane.post("/v1/tokens", 201, name="ops", role="operator")
    new = plane.post(f"/v1/tokens/{made['id']}/rotate", 201)
    assert new["roles"] == {"default": "operator"}
    assert allowed(plane, new["token"]) == ALLOWED[Role.OPERATOR]


@pytest.mark.parametrize("body", [{}, {"scope": "read"}, {"role": "owner"}])
def test_token_requires_exactly_one_role(plane: Plane, body: dict[str, str]) -> None:
    answer = plane.client.post("/v1/tokens", json={"name": "x", **body})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:invalid-request")


def test_refusal_names_the_required_role(plane: Plane) -> None:
    with plane.as_bearer(plane.token("operator", "night-shift")) as client:
        answer = client.delete("/v1/artifacts/" + "0" * 64)
    assert answer.json()["detail"] == (
        "The token 'night-shift' has the role operator in the project 'default'; this call requires the role author. "
        "Ask an administrator for another token."
    )
