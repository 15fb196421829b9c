"""Roles of tokens: what is given is what is allowed, also to those that were made before there were roles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

from epochal.service.catalog.models import Token
from epochal.wire.tokens import Role, Scope

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
    """Of the calls of an admin, those that are not forbidden."""
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
def test_a_role_allows_what_it_says(plane: Plane, role: Role) -> None:
    assert allowed(plane, plane.token(role.value)) == ALLOWED[role]


@pytest.mark.parametrize("scope", Scope)
def test_a_scope_is_a_role(plane: Plane, scope: Scope) -> None:
    made = plane.post("/v1/tokens", 201, name="earlier", scope=scope.value)
    assert (made["roles"], made["scope"]) == ({"default": scope.role}, scope)
    assert allowed(plane, made["token"]) == ALLOWED[scope.role]


@pytest.mark.parametrize("scope", Scope)
def test_a_token_of_an_earlier_version_may_do_what_it_did(plane: Plane, scope: Scope) -> None:
    made = plane.post("/v1/tokens", 201, name="earlier", scope=scope.value)
    with plane.control.database.writing() as session:
        session.execute(update(Token).where(Token.id == made["id"]).values(roles=None))
    assert allowed(plane, made["token"]) == ALLOWED[scope.role]
    [listed] = [token for token in plane.get("/v1/tokens")["items"] if token["id"] == made["id"]]
    assert listed["roles"] == {"default": scope.role}


@pytest.mark.parametrize("role", Role)
def test_an_earlier_version_allows_a_token_no_more_than_its_role(plane: Plane, role: Role) -> None:
    made = plane.post("/v1/tokens", 201, name="new", role=role.value)
    assert role.includes(Scope(made["scope"]).role)
    assert (made["scope"] == "read") == (role in (Role.VIEWER, Role.OPERATOR))


def test_a_token_that_is_rotated_keeps_its_role(plane: Plane) -> None:
    made = plane.post("/v1/tokens", 201, name="ops", role="operator")
    new = plane.post(f"/v1/tokens/{made['id']}/rotate", 201)
    assert new["roles"] == {"default": "operator"}
    assert allowed(plane, new["token"]) == ALLOWED[Role.OPERATOR]


@pytest.mark.parametrize("body", [{}, {"role": "viewer", "scope": "read"}, {"role": "owner"}])
def test_a_token_needs_exactly_one_role(plane: Plane, body: dict[str, str]) -> None:
    answer = plane.client.post("/v1/tokens", json={"name": "x", **body})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:epochal:problem:invalid-request")


def test_who_is_refused_is_told_which_role_it_takes(plane: Plane) -> None:
    with plane.as_bearer(plane.token("operator", "night-shift")) as client:
        answer = client.delete("/v1/artifacts/" + "0" * 64)
    assert answer.json()["detail"] == (
        "The token 'night-shift' has the role operator in the project 'default'; this call requires the role author. "
        "Ask an administrator for another token."
    )
