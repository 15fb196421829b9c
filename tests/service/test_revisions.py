"""``If-Match``: an application is changed only if its revision is the one that the caller has read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.problems import check_problem

if TYPE_CHECKING:
    from tests.service.conftest import Plane

CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/start", {}),
    ("POST", "/stop", {}),
    ("POST", "/restart", {}),
    ("POST", "/versions", {"configuration": {"parallelism": 3}}),
    ("POST", "/rescale", {"parallelism": 3}),
    ("POST", "/rekey", {"max_parallelism": 64}),
    ("POST", "/rollback", {"epoch": 1}),
    ("DELETE", "", {}),
]


def change(plane: Plane, verb: tuple[str, str, dict[str, Any]], if_match: str) -> Any:
    method, path, body = verb
    sent = {"json": body} if method == "POST" else {}
    return plane.client.request(method, f"/v1/applications/flights{path}", headers={"If-Match": if_match}, **sent)


def etag(plane: Plane) -> str:
    return str(plane.client.get("/v1/applications/flights").headers["etag"])


@pytest.mark.parametrize("verb", CHANGES, ids=lambda verb: verb[1] or "delete")
def test_change_of_another_revision_is_refused(plane: Plane, verb: tuple[str, str, dict[str, Any]]) -> None:
    plane.application(start=False)
    seen = etag(plane)
    plane.post("/v1/applications/flights/versions", 201, configuration={"parallelism": 2})
    before = plane.get("/v1/applications/flights")

    problem = check_problem(change(plane, verb, seen), 412, "precondition-failed")
    assert "version 2 was made by 'admin'" in problem["detail"] and before["revision"] in problem["detail"]
    assert plane.get("/v1/applications/flights") == before
    assert plane.get("/v1/operations")["items"][0]["kind"] == "upgrade"


def test_revision_changes_with_each_change_but_not_with_epochs(plane: Plane) -> None:
    made = plane.client.post(
        "/v1/applications", json={"name": "flights", "artifact": plane.artifact(), "parameters": {"out": "/data"}}
    )
    seen = [made.headers["etag"]]
    assert seen == [f'"{made.json()["revision"]}"']
    driver = plane.driver()
    driver.running()
    driver.epochs(2)
    assert etag(plane) == seen[0]

    assert change(plane, ("POST", "/stop", {}), seen[0]).status_code == 202
    seen.append(etag(plane))
    problem = check_problem(change(plane, ("POST", "/restart", {}), seen[0]), 412, "precondition-failed")
    assert "it is stopping" in problem["detail"]
    driver.stop()
    seen.append(etag(plane))
    assert change(plane, ("POST", "/start", {}), f'"other", {seen[2]}').status_code == 202
    seen.append(etag(plane))
    assert len(set(seen)) == 4
    assert "it was started" in change(plane, ("POST", "/stop", {}), seen[2]).json()["detail"]


def test_if_match_is_validated(plane: Plane) -> None:
    plane.application(start=False)
    check_problem(change(plane, ("DELETE", "", {}), "unquoted"), 422, "invalid-input")
    check_problem(change(plane, ("DELETE", "", {}), f"W/{etag(plane)}"), 412, "precondition-failed")
    check_problem(change(plane, ("DELETE", "", {}), '"of another kind"'), 422, "invalid-input")
    check_problem(change(plane, ("DELETE", "", {}), '"1"'), 412, "precondition-failed")
    assert change(plane, ("DELETE", "", {}), "*").status_code == 204
