"""Cancelled exports and imports leave nothing behind; operations that cannot be cancelled are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from epochal.service.catalog.operation_claims import Claim
from epochal.service.commands.bundles.uploads import uploads_folder
from epochal.snapshots.store import SnapshotStore
from tests.kit.waiting import eventually
from tests.service.bundles import exported, uploaded, with_state
from tests.service.conftest import Plane


@contextmanager
def halted(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Stop operations at their first progress report until they are cancelled; yields an event for that report."""
    halting = threading.Event()

    def progress(claim: Claim, text: str) -> None:
        halting.set()
        while True:
            claim.check()

    with monkeypatch.context() as patch:
        patch.setattr(Claim, "progress", progress)
        yield halting


def cancelled(plane: Plane, operation: dict[str, Any], halting: threading.Event) -> dict[str, Any]:
    assert halting.wait(30)
    path = f"/v1/operations/{operation['id']}"
    assert plane.post(f"{path}/cancel")["cancel_requested_at"] is not None
    eventually(lambda: plane.get(path)["state"] != "running")
    return dict(plane.get(path))


def test_a_cancelled_export_leaves_no_bundle(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    with_state(plane)
    with halted(monkeypatch) as halting:
        ended = cancelled(plane, plane.post("/v1/applications/flights/export"), halting)
    assert (ended["state"], ended["error"]["type"]) == ("cancelled", "urn:epochal:problem:operation-cancelled")
    assert SnapshotStore(plane.settings.store_url).list("exports") == []
    assert exported(plane)  # and the next one is built


@pytest.mark.alternating(2)
def test_a_cancelled_import_leaves_neither_files_nor_upload(
    plane: Plane, other: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_state(plane)
    upload = uploaded(other, exported(plane))
    with halted(monkeypatch) as halting:
        importing = other.post(f"/v1/imports/{upload}/application", parameters={"out": "/new"})
        ended = cancelled(other, importing, halting)
    assert ended["state"] == "cancelled"
    assert (
        SnapshotStore(other.settings.store_url).list("") == [] and list(uploads_folder(other.settings).iterdir()) == []
    )
    assert other.get("/v1/applications")["items"] == []


def test_cancellations_of_ended_unknown_or_driver_operations_are_refused(plane: Plane) -> None:
    plane.application()
    savepoint = plane.post("/v1/applications/flights/stop")
    answer = plane.client.post(f"/v1/operations/{savepoint['id']}/cancel", json={})
    assert answer.status_code == 409 and "stop" in answer.json()["detail"]
    assert plane.client.post("/v1/operations/unknown/cancel", json={}).status_code == 404
    verified = plane.post("/v1/verifications")
    with plane.as_bearer(plane.token("author")) as operator:
        assert operator.post(f"/v1/operations/{verified['id']}/cancel", json={}).status_code == 403
    eventually(lambda: plane.get(f"/v1/operations/{verified['id']}")["state"] == "succeeded")
    late = plane.client.post(f"/v1/operations/{verified['id']}/cancel", json={})
    assert late.status_code == 409 and "has already succeeded" in late.json()["detail"]
