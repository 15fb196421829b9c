"""State that is in no snapshot: requests for it are refused by name, and forks and exports report that they omit it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from epochal.state.table import Column, StateKind, StateTable
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from tests.service.conftest import Plane

KEY = (Column(name="user", type="string"),)
VALUE = (Column(name="count", type="bigint"),)
VISITS = StateTable(id="seen.visits", operator="seen", kind=StateKind.VALUE, key=KEY, value=VALUE)
PROFILE = VISITS.model_copy(update={"id": "seen.profile", "durable": False, "queryable": False})
NOT_DURABLE = "is not durable, and in no snapshot; declare it without durable=False to read it"
FLIGHTS = "/v1/applications/flights"


@pytest.mark.alternating(3)
def test_state_that_is_not_durable_is_refused_by_name(plane: Plane) -> None:
    tables = [table.model_dump(mode="json") for table in (VISITS, PROFILE)]
    plane.application(artifact=plane.artifact(tables=tables))
    driver = plane.driver()
    driver.running()
    driver.epochs(2)
    refused = [
        ("GET", f"{FLIGHTS}/state/seen.profile/keys/ada", {}),
        ("GET", f"{FLIGHTS}/state/seen.profile/keys/ada", {"epoch": 1}),
        ("GET", f"{FLIGHTS}/state/seen.profile/keys/ada/history", {}),
        ("GET", f"{FLIGHTS}/state/seen.profile/scan", {}),
        ("GET", f"{FLIGHTS}/snapshots/1/diff/seen.profile", {"to": 2}),
    ]
    for method, path, query in refused:
        answer = plane.client.request(method, path, params=query)
        assert answer.status_code == 404 and NOT_DURABLE in answer.text, (path, answer.text)
    listed = {table["table"]: table["queryable"] for table in plane.get(f"{FLIGHTS}/state")["items"]}
    assert listed == {"seen.visits": True, "seen.profile": False}

    fork = {"name": "copy", "parameters": {"out": "/data/copy"}, "start": False}
    answer = plane.client.post(f"{FLIGHTS}/fork", json=fork)
    assert answer.status_code == 422 and "State 'seen.profile' is not durable" in answer.json()["detail"], answer.text
    allowed = {"allow_dropped_state": ["seen.profile"]}
    plane.post(f"{FLIGHTS}/fork", 201, **fork, configuration=allowed)

    driver.stop()
    operation = plane.post(f"{FLIGHTS}/export")
    path = f"/v1/operations/{operation['id']}"
    eventually(lambda: plane.get(path)["state"] != "running")
    assert plane.get(path)["result"]["left_out"] == ["seen.profile"]
