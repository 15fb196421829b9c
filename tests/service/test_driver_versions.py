"""Drivers whose protocol version differs from the control plane's, replayed from recorded calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from epochal.contracts.catalog import DriverStatus
from epochal.driver.heartbeat import HeartbeatingCatalog
from epochal.wire import internal_api
from epochal.wire.internal_api import PROTOCOL, PROTOCOL_HEADER, VERSION_HEADER
from tests.kit.waiting import eventually
from tests.service.conftest import Driver, Plane

HEARTBEAT = DriverStatus(phase="running", epoch=1)

STATUS = {"phase": "running", "detail": None, "epoch": 1, "transactions": []}

# Calls of drivers with protocol 1: without headers and later fields.
RECORDED = [
    ("POST", "begin", None, 200),
    ("POST", "heartbeat", {"phase": "starting", "detail": None, "epoch": None, "transactions": []}, 200),
    ("POST", "epochs", {"epoch": 1, "parent": None}, 204),
    (
        "POST",
        "epochs/1/prepare",
        {
            "parent": None,
            "manifest": {"branch": "{branch}", "epoch": 1, "path": "{path}", "sha256": "{sha256}"},
            "counts": {"rows_in": 1, "rows_out": 1, "state_rows": 0, "state_bytes": 0},
            "terms": {"version": None, "changes": []},
        },
        204,
    ),
    ("POST", "epochs/1/commit", None, 204),
    ("GET", "epochs/1", None, 200),
    ("POST", "heartbeat", STATUS, 200),
    ("POST", "finish", {"failure": None}, 204),
]
# The fields of the answers that such a driver requires.
ANSWERED = {
    "begin": {"application": "flights", "attempt": 1, "head": None, "prepared": [], "started": [], "next_epoch": 1},
    "epochs/1": {"epoch": 1, "attempt": 1, "state": "committed"},
    "heartbeat": {"directives": []},
}


class RecordedDriver:
    """A driver that replays recorded calls."""

    def __init__(self, plane: Plane, headers: Mapping[str, str]) -> None:
        driver = Driver(plane, "flights")
        self._path = f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/"
        reference = driver.manifest(1)
        self._places = {"{branch}": driver.point.branch, "{path}": reference.path, "{sha256}": reference.sha256}
        token = {"Authorization": f"Bearer {driver.ticket.token}"}
        self.client = httpx.Client(base_url=plane.settings.internal_url, headers={**token, **headers}, trust_env=False)

    def send(self, method: str, path: str, body: Any) -> httpx.Response:
        return self.client.request(method, self._path + path, json=self._filled(body))

    def _filled(self, body: Any) -> Any:
        if isinstance(body, dict):
            return {name: self._filled(value) for name, value in body.items()}
        return self._places.get(body, body) if isinstance(body, str) else body


@pytest.mark.parametrize(
    "headers",
    [
        {PROTOCOL_HEADER: str(PROTOCOL - 1)},
        {PROTOCOL_HEADER: str(PROTOCOL + 1), VERSION_HEADER: "9.9.9", "Epochal-News": "of a later version"},
    ],
    ids=["older", "newer"],
)
def test_a_driver_one_protocol_version_apart_is_served(plane: Plane, headers: dict[str, str]) -> None:
    plane.application()
    driver = RecordedDriver(plane, headers)
    for method, path, body, status in RECORDED:
        answer = driver.send(method, path, body)
        assert answer.status_code == status, (path, answer.text)
        if path in ANSWERED:
            document = answer.json()
            assert {name: document[name] for name in ANSWERED[path]} == ANSWERED[path]
    unknown = driver.send("GET", "a-later-call", None)
    assert (unknown.status_code, unknown.json()["type"]) == (404, "urn:epochal:problem:no-such-path")
    assert plane.get("/v1/applications/flights")["state"] == "stopped"
    assert plane.get("/v1/operations")["items"][0]["kind"] == "start"


@pytest.mark.parametrize(("own", "protocol"), [(3, 1), (1, 3)])
def test_a_driver_two_protocol_versions_apart_is_replaced(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, own: int, protocol: int
) -> None:
    monkeypatch.setattr(internal_api, "PROTOCOL", own)
    plane.application()
    driver = RecordedDriver(plane, {PROTOCOL_HEADER: str(protocol), VERSION_HEADER: "0.0.7"})
    starting = {**STATUS, "phase": "starting"}
    assert driver.send("POST", "heartbeat", starting).json()["directives"] == []  # it has no epoch loop to stop yet
    assert driver.send("POST", "heartbeat", STATUS).json()["directives"] == []  # completes its start first
    (stop,) = driver.send("POST", "heartbeat", STATUS).json()["directives"]
    assert stop["kind"] == "stop"
    assert len(driver.send("POST", "heartbeat", STATUS).json()["directives"]) == 1
    before = plane.get("/v1/applications/flights")["execution"]
    (restart,) = [item for item in plane.get("/v1/operations")["items"] if item["kind"] == "restart"]
    assert "version 0.0.7" in restart["progress"]

    assert driver.send("POST", f"directives/{stop['id']}", {"head": None}).status_code == 204
    assert driver.send("POST", "finish", {"failure": None}).status_code == 204
    application = plane.get("/v1/applications/flights")
    assert application["state"] == "starting" and application["execution"] != before
    Driver(plane, "flights").running()
    assert plane.get(f"/v1/operations/{restart['id']}")["state"] == "succeeded"


def test_a_driver_fetches_a_directive_without_waiting_for_its_heartbeat(plane: Plane) -> None:
    plane.application()
    http = plane.driver().catalog
    catalog = HeartbeatingCatalog(http, lambda _error: None, interval_seconds=600, listen=http.listen)
    catalog.start()
    catalog.heartbeat(HEARTBEAT)
    eventually(lambda: plane.get("/v1/applications/flights")["state"] == "running")
    for number in range(2):  # the second one arrives while the first one waits
        plane.post("/v1/applications/flights/savepoints", name=f"s{number}")
        eventually(lambda: len(catalog.heartbeat(HEARTBEAT)) == number + 1)  # noqa: B023 called within the iteration
    catalog.stop()
    assert http.listen("f" * 32) is None
