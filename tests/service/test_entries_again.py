"""Calls that are carried out again: after a rollback, on the new branch; in a trial, beside the application."""

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
from tests.service.called import Application
from tests.service.conftest import Plane


@pytest.fixture
def store(plane: Plane) -> Application:
    application = Application(plane)
    application.create()
    return application


def test_calls_of_epochs_that_a_rollback_leaves_are_carried_out_again(store: Application) -> None:
    plane, again = store.plane, {"request_id": "again", "arguments": {"key": "x", "value": "2"}}
    with store.running():
        kept = store.call(request_id="kept", arguments={"key": "x", "value": "1"})
        left = store.call(**again)
        assert store.call(request_id="other", arguments={"key": "y", "value": "1"})["value"] == [None, 1]
    driver = plane.driver("store")
    driver.running()
    target = {"epoch": kept["epoch"]}
    confirm = plane.post("/v1/applications/store/rollback", 200, dry_run=True, **target)["confirm"]
    operation = plane.post("/v1/applications/store/rollback", **target, confirm=confirm)
    driver.stop()
    # What the snapshot has stays answered; what came after it waits again, whoever asks and however. A replica is at
    # the branch that was left until it has been brought to the snapshot: an answer says which one it is of.
    eventually(lambda: store.look("kept") == kept)
    assert store.look("again", 202, wait=0) == store.call(202, wait=0, **again)
    assert store.look("again", 202, wait=0)["state"] == "waiting"
    late = {"request_id": "late", "arguments": {"key": "x"}}
    assert store.call(202, wait=0, **late)["state"] == "waiting"
    with store.running():
        answer = store.look("again")
        assert (answer["value"], answer["branch"] != left["branch"]) == (["1", 2], True)
        assert answer["epoch"] > left["epoch"] and answer == store.call(**again) | {"epoch": answer["epoch"]}
        assert store.look("late")["value"] == ["2", 3] and store.look("other")["value"] == [None, 1]
        assert store.look("kept")["value"] == [None, 1]
        assert plane.get("/v1/applications/store/state/values.value/keys/x")["value"]["calls"] == 3
    assert plane.get(f"/v1/operations/{operation['id']}")["state"] == "running"  # nobody has said that it runs again


def tried_again(application: Application, epochs: int) -> list[tuple[str, str, str | None]]:
    """Entry, request id and value of the calls that the last epochs have taken."""
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


def test_a_trial_has_the_calls_that_its_epochs_took(store: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.running():
        for number in range(3):
            store.call(request_id=f"r{number}", arguments={"key": "x", "value": str(number)})
        store.call(entry="note", request_id="noted", arguments={"key": "x"})
    calls = [("exchange", f"r{number}", str(number)) for number in range(3)] + [("note", "noted", None)]
    assert tried_again(store, 1) == calls[3:]
    assert tried_again(store, 3) == calls[1:]
    assert tried_again(store, 100) == calls

    # A fork has an inbox of its own: its epochs of before it are tried with the calls of whoever took them.
    store.plane.post("/v1/applications/store/fork", expect=201, name="forked", shadow=True)
    forked = Application(store.plane, "forked")
    with forked.running():
        forked.call(request_id="r0", arguments={"key": "x", "value": "forked"})
    assert tried_again(forked, 2) == [("note", "noted", None), ("exchange", "r0", "forked")]

    monkeypatch.setattr(preflight, "MOST_BYTES", 40)
    with pytest.raises(InvalidInput, match=r"exceed the maximum of 0 MiB for a trial\. Repeat the last 1 epochs"):
        tried_again(store, 4)


def test_a_trial_says_which_epochs_it_lacks_the_calls_of(store: Application) -> None:
    with store.running():
        first = store.call(request_id="r0", arguments={"key": "x"})
        store.call(request_id="r1", arguments={"key": "x"})
    with store.plane.control.database.writing() as session:
        session.delete(session.query(InboxBatch).order_by(InboxBatch.last).first())
    assert tried_again(store, 1) == [("exchange", "r1", None)]
    missing = rf"Epoch {first['epoch']} of store-\w+ processed 1 calls of entries that are not in the inbox"
    with pytest.raises(InvalidInput, match=missing + r".* Repeat the last 1 epochs\."):
        tried_again(store, 2)
