"""Calls that are processed again, after a rollback and in a trial."""

from __future__ import annotations

import json

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.errors import InvalidInput
from epochal.service.catalog.models import InboxBatch
from epochal.service.commands import preflight
from epochal.service.commands.preflight import calls_to_try_again
from epochal.snapshots.store import SnapshotStore
from tests.kit.waiting import eventually
from tests.service.conftest import Plane
from tests.service.entry_application import Application


@pytest.fixture
def store(plane: Plane) -> Application:
    application = Application(plane)
    application.create()
    return application


def test_calls_of_abandoned_epochs_are_processed_again(store: Application) -> None:
    plane, repeated = store.plane, {"request_id": "repeated", "arguments": {"key": "x", "value": "2"}}
    with store.running():
        retained = store.call(request_id="retained", arguments={"key": "x", "value": "1"})
        abandoned = store.call(**repeated)
        assert store.call(request_id="other", arguments={"key": "y", "value": "1"})["value"] == [None, 1]
    driver = plane.driver("store")
    driver.running()
    target = {"epoch": retained["epoch"]}
    confirm = plane.post("/v1/applications/store/rollback", 200, dry_run=True, **target)["confirm"]
    operation = plane.post("/v1/applications/store/rollback", **target, confirm=confirm)
    driver.stop()
    # Calls in the snapshot stay answered; calls after it wait again. A replica answers from the abandoned branch until
    # it has reached the snapshot.
    eventually(lambda: store.look("retained") == retained)
    assert store.look("repeated", 202, wait=0) == store.call(202, wait=0, **repeated)
    assert store.look("repeated", 202, wait=0)["state"] == "waiting"
    late = {"request_id": "late", "arguments": {"key": "x"}}
    assert store.call(202, wait=0, **late)["state"] == "waiting"
    with store.running():
        answer = store.look("repeated")
        assert (answer["value"], answer["branch"] != abandoned["branch"]) == (["1", 2], True)
        assert answer["epoch"] > abandoned["epoch"] and answer == store.call(**repeated) | {"epoch": answer["epoch"]}
        assert store.look("late")["value"] == ["2", 3] and store.look("other")["value"] == [None, 1]
        assert store.look("retained")["value"] == [None, 1]
        assert plane.get("/v1/applications/store/state/values.value/keys/x")["value"]["calls"] == 3
    assert plane.get(f"/v1/operations/{operation['id']}")["state"] == "running"  # no driver has reported that it runs


def calls_of_trial(application: Application, epochs: int) -> list[tuple[str, str, str | None]]:
    """Entry, request id and value of the calls that a trial of the last epochs repeats."""
    plane = application.plane
    head = plane.get(f"/v1/applications/{application.name}")["head"]
    path = f"/v1/applications/{application.name}/snapshots/{head['epoch']}"
    reference = ManifestReference.model_validate(plane.get(path)["reference"])
    found = calls_to_try_again(plane.control.database, SnapshotStore(plane.settings.store_url), reference, epochs)
    return [
        (batch.entry, request_id, json.loads(arguments).get("value"))
        for batch in found
        for request_id, arguments in zip(batch.request_ids, batch.arguments, strict=True)
    ]


def test_a_trial_repeats_the_calls_of_its_epochs(store: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.running():
        for number in range(3):
            store.call(request_id=f"r{number}", arguments={"key": "x", "value": str(number)})
        store.call(entry="note", request_id="noted", arguments={"key": "x"})
    calls = [("exchange", f"r{number}", str(number)) for number in range(3)] + [("note", "noted", None)]
    assert calls_of_trial(store, 1) == calls[3:]
    assert calls_of_trial(store, 3) == calls[1:]
    assert calls_of_trial(store, 100) == calls

    # A fork has its own inbox; the calls of its inherited epochs come from the inbox of the parent.
    store.plane.post("/v1/applications/store/fork", expect=201, name="forked", shadow=True)
    forked = Application(store.plane, "forked")
    with forked.running():
        forked.call(request_id="r0", arguments={"key": "x", "value": "forked"})
    assert calls_of_trial(forked, 2) == [("note", "noted", None), ("exchange", "r0", "forked")]

    monkeypatch.setattr(preflight, "MOST_BYTES", 40)
    with pytest.raises(InvalidInput, match=r"exceed the maximum of 0 MiB for a trial\. Repeat the last 1 epochs"):
        calls_of_trial(store, 4)


def test_a_trial_without_the_calls_of_an_epoch_is_refused(store: Application) -> None:
    with store.running():
        first = store.call(request_id="r0", arguments={"key": "x"})
        store.call(request_id="r1", arguments={"key": "x"})
    with store.plane.control.database.writing() as session:
        session.delete(session.query(InboxBatch).order_by(InboxBatch.last).first())
    assert calls_of_trial(store, 1) == [("exchange", "r1", None)]
    missing = rf"Epoch {first['epoch']} of store-\w+ processed 1 calls of entries that are not in the inbox"
    with pytest.raises(InvalidInput, match=missing + r".* Repeat the last 1 epochs\."):
        calls_of_trial(store, 2)
