"""Background re-keying, with a builder that writes what Spark would write: committed results and cleanup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.configuration import Acceptance
from epochal.contracts.identity import EpochKey
from epochal.errors import OutcomeUnknown
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operations import OperationRepository
from epochal.service.commands import rekey as points
from epochal.service.commands.rekey import RekeyService
from epochal.service.domain.building import RekeyOf
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.operations import OperationWorker
from epochal.snapshots import layout
from epochal.snapshots.manifest import DeltaFile
from epochal.snapshots.store import SnapshotStore
from tests.kit.stores import snapshot_files
from tests.service.conftest import Plane, StandInBuilder
from tests.service.lookups import DELAYS, StateDriver, route
from tests.service.lost_answers import answer_lost


class RekeyingBuilder(StandInBuilder):
    """Copies the files of the previous snapshot. Calls ``meanwhile`` before it returns."""

    def __init__(self, store: SnapshotStore, meanwhile: Callable[[], object]) -> None:
        self.store = store
        self.meanwhile = meanwhile
        self.accepted: list[Acceptance] = []

    def rekey(
        self,
        project: str,
        artifact: Path,
        parameters: Mapping[str, Any],
        configuration: Any,
        target: RekeyOf,
        meanwhile: Any,
    ) -> ManifestReference:
        self.accepted.append(target.acceptance)
        before = self.store.read_manifest(target.head)
        place = {"branch": target.at.branch, "epoch": target.at.epoch, "parent": target.head}
        more = {"max_parallelism": configuration.max_parallelism, "attempt": 0}
        deltas = [self._copied(delta, target.at) for delta in before.deltas]
        reference = self.store.write_manifest(before.model_copy(update={**place, **more, "deltas": tuple(deltas)}))
        self.meanwhile()
        return reference

    def _copied(self, delta: DeltaFile, at: EpochKey) -> DeltaFile:
        path = f"{layout.deltas(at)}/{delta.file.path.rpartition('/')[2]}"
        self.store.write(path, self.store.read(delta.file.path))
        return delta.model_copy(update={"file": delta.file.model_copy(update={"path": path})})


class Rekeys:
    """Re-keys an application that was stopped after two epochs, with its own worker in place of the plane's."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        plane.control.worker.close()
        self.store = SnapshotStore(plane.settings.store_url)
        plane.application()
        driver = StateDriver(plane, tables=(DELAYS,))
        for number in (1, 2):
            driver.epoch((DELAYS, [route("JFK", "LAX", number, 1.0)]))
        plane.post("/v1/applications/flights/stop")
        driver.driver.stop()
        self.before = plane.get("/v1/applications/flights")
        self.files = snapshot_files(self.store)

    def queue(self, **more: Any) -> str:
        with self.plane.control.database.writing() as session:
            application = ApplicationRepository(session).named("flights")
            arguments = {"request": {"max_parallelism": 16, **more}, "branches": []}
            return OperationRepository(session).add("rekey", application, None, arguments, "me").id

    def run(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        control = self.plane.control
        code = ArtifactCache(self.plane.settings.artifact_cache_directory, control.files)
        worker = OperationWorker(control.database)
        builder = RekeyingBuilder(self.store, meanwhile)
        self.accepted = builder.accepted
        RekeyService(self.plane.settings, control.database, builder, code, control.store, worker)
        worker.work_off("rekeys")

    def state(self, id: str) -> str:
        return str(self.plane.get(f"/v1/operations/{id}")["state"])

    def check_moved(self, id: str) -> None:
        """Check that the store has the files of the new head, and no others of any try."""
        after = self.plane.get("/v1/applications/flights")
        assert self.plane.get(f"/v1/operations/{id}")["result"] == {
            "version": 2,
            "branch": after["branch"],
            "epoch": 3,
        }
        assert after["branch"] != self.before["branch"]
        assert after["configuration"]["max_parallelism"] == 16
        snapshot = self.plane.get("/v1/applications/flights/snapshots/3")
        needed = {snapshot["reference"]["path"], *(delta["file"]["path"] for delta in snapshot["deltas"])}
        assert set(snapshot_files(self.store)) - set(self.files) == needed
        assert {path.partition("/")[0] for path in needed} == {after["branch"]}
        assert (snapshot["branch"], snapshot["max_parallelism"]) == (after["branch"], 16)


@pytest.fixture
def rekeys(plane: Plane) -> Rekeys:
    return Rekeys(plane)


def test_rekey_moves_the_application_to_a_new_branch(rekeys: Rekeys) -> None:
    id = rekeys.queue()
    rekeys.run()
    assert rekeys.state(id) == "succeeded"
    rekeys.check_moved(id)
    rekeys.plane.check_counters()


def test_acceptance_of_a_version_that_has_not_run_is_kept(rekeys: Rekeys) -> None:
    """The snapshot has the state tables of the version that wrote it."""
    acceptance = {"changed": ["delays"], "partial": []}
    id = rekeys.queue(acceptance=acceptance)
    rekeys.run()
    rekeys.check_moved(id)
    assert rekeys.accepted == [Acceptance.model_validate(acceptance)]
    assert rekeys.plane.get("/v1/applications/flights/versions")["items"][0]["acceptance"] == acceptance


def test_committed_rekey_with_a_lost_answer_keeps_its_files(rekeys: Rekeys) -> None:
    id = rekeys.queue()
    with answer_lost(rekeys.plane.control.database, points.MOVED) as lost, pytest.raises(OutcomeUnknown):
        rekeys.run()
    assert lost == [points.MOVED]
    assert rekeys.state(id) == "succeeded"
    rekeys.check_moved(id)


def test_rekey_that_was_not_committed_is_repeated_on_a_new_branch(rekeys: Rekeys) -> None:
    id = rekeys.queue()
    with answer_lost(rekeys.plane.control.database, points.MOVED, lands=False), pytest.raises(OutcomeUnknown):
        rekeys.run()
    assert rekeys.plane.get("/v1/applications/flights") == rekeys.before
    assert rekeys.state(id) == "running" and snapshot_files(rekeys.store) == rekeys.files
    rekeys.run()
    rekeys.check_moved(id)
    with rekeys.plane.control.database.reading() as session:
        assert len(session.get_one(Operation, id).arguments["branches"]) == 2


def test_rekey_fails_after_a_concurrent_change_and_removes_its_files(rekeys: Rekeys) -> None:
    id = rekeys.queue()
    plane = rekeys.plane

    def meanwhile() -> None:
        with plane.control.database.writing() as session:  # an upgrade is refused while a rekey runs
            row = session.get_one(Operation, id)
            row.kind = "trial"
        plane.post("/v1/applications/flights/versions", 201, configuration={"parallelism": 3})

    rekeys.run(meanwhile)
    failed = plane.get(f"/v1/operations/{id}")
    assert failed["state"] == "failed" and "was changed while it was re-keyed" in failed["error"]["detail"]
    assert snapshot_files(rekeys.store) == rekeys.files


def test_cancelled_rekey_changes_neither_application_nor_store(rekeys: Rekeys) -> None:
    id = rekeys.queue()
    rekeys.run(lambda: rekeys.plane.post(f"/v1/operations/{id}/cancel"))
    assert rekeys.state(id) == "cancelled"
    assert rekeys.plane.get("/v1/applications/flights") == rekeys.before
    assert snapshot_files(rekeys.store) == rekeys.files


def test_application_cannot_be_started_or_changed_during_a_rekey(rekeys: Rekeys) -> None:
    id = rekeys.queue()
    client = rekeys.plane.client
    for path, body in (
        ("start", {}),
        ("restart", {}),
        ("rescale", {"parallelism": 3}),
        ("versions", {}),
        ("rekey", {"max_parallelism": 16}),
    ):
        answer = client.post(f"/v1/applications/flights/{path}", json=body)
        assert answer.status_code == 409, path
        assert f"rekey {id}" in answer.json()["detail"]
