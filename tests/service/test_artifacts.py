"""Artifacts in the store under concurrent registrations and deletions, and with processes killed at every step."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from epochal.driver.main import fetched_graph
from epochal.driver.orders import ArtifactOrder
from epochal.errors import ArtifactError, Conflict, StorageFull
from epochal.faults import FaultPoint, injected
from epochal.service.catalog.applications import ApplicationRepository
from epochal.service.catalog.artifacts import ArtifactRepository
from epochal.service.catalog.database import Database
from epochal.service.catalog.executions import BranchOrigin
from epochal.service.catalog.models import Artifact, StoreFile
from epochal.service.catalog.types import now
from epochal.service.catalog.versions import VersionRepository
from epochal.service.commands.artifacts import UNUSED_KEPT, ArtifactService
from epochal.service.commands.collections import Collection, CollectionRequest
from epochal.service.domain.settings import Settings
from epochal.service.runtime import artifact_cache
from epochal.service.runtime.artifact_cache import ArtifactCache
from epochal.service.runtime.stored_files import StoredFiles
from epochal.snapshots.store import SnapshotStore
from epochal.wire.configuration import ApplicationConfiguration
from tests.kit.catalogs import new_sqlite_catalog
from tests.service.conftest import Plane, http_client

CODE = b"x = 1\n"
SHA256 = hashlib.sha256(CODE).hexdigest()


class Killed(BaseException):
    """Derives from BaseException so that no handler for errors runs, as in a killed process."""


@dataclass
class Installation:
    """The services for artifacts of a control plane, on a catalog and a store that others may share."""

    settings: Settings
    database: Database

    def __post_init__(self) -> None:
        self.store = SnapshotStore(self.settings.store_url)
        self.files = StoredFiles(self.database, self.store)
        self.artifacts = ArtifactService(self.settings, self.database, self.files)
        self.settings.artifact_cache_directory.mkdir(parents=True, exist_ok=True)
        self.cache = ArtifactCache(self.settings.artifact_cache_directory, self.files)

    def stored(self) -> list[str]:
        return self.store.list("artifacts")

    def row(self) -> Artifact:
        with self.database.reading() as session:
            return VersionRepository(session).artifact(SHA256)

    def is_registered(self) -> bool:
        with self.database.reading() as session:
            return ArtifactRepository(session).find(SHA256) is not None

    def is_complete(self) -> bool:
        """The stored file has the bytes of the artifact."""
        return self.store.read(self.row().path or "") == CODE

    def expire_intents(self) -> None:
        """Expire the rows of files that were announced but not registered."""
        with self.database.writing() as session:
            session.execute(
                update(StoreFile).where(StoreFile.expires_at.is_not(None)).values(expires_at=now() - timedelta(1))
            )
        self.files.sweep()

    def catalogued(self) -> set[str]:
        with self.database.reading() as session:
            return {row.path for row in session.query(StoreFile)}

    def use(self) -> None:
        with self.database.writing() as session:
            row = ApplicationRepository(session).add("flights", BranchOrigin("start"), shadow=False, by="me")
            VersionRepository(session).add(row, 1, SHA256, {}, ApplicationConfiguration(), None, "me")


@pytest.fixture(params=["sqlite", "postgresql"])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    url = None if request.param == "sqlite" else str(request.getfixturevalue("postgresql_catalog_url"))
    settings = Settings(data=tmp_path / "data", database=url, store=str(tmp_path / "store"))
    if url is None:
        new_sqlite_catalog(settings.data / "catalog.sqlite")
    database = Database(settings.database_url)
    yield Installation(settings, database)
    database.close()


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    def kill(hit: FaultPoint, epoch: int | None) -> None:
        if hit.name == point:
            raise Killed

    with injected(kill), pytest.raises(Killed):
        yield


@pytest.mark.parametrize("point", ["file.intended", "file.written"])
def test_a_killed_registration_leaves_no_file(installation: Installation, point: str) -> None:
    with killed_at(point):
        installation.artifacts.register("x.py", CODE, "default", "me")
    assert not installation.is_registered()
    installation.expire_intents()
    assert (installation.stored(), installation.catalogued()) == ([], set())


@pytest.mark.parametrize("point", ["file.intended", "file.written"])
def test_a_registration_after_a_killed_one_succeeds(installation: Installation, point: str) -> None:
    with killed_at(point):
        installation.artifacts.register("x.py", CODE, "default", "me")
    installation.artifacts.register("x.py", CODE, "default", "me")
    installation.expire_intents()
    assert (
        installation.is_complete()
        and installation.stored() == [installation.row().path]
        and installation.catalogued() == {installation.row().path}
    )


@pytest.mark.parametrize("point", ["artifact.given-up", "file.deleted"])
@pytest.mark.parametrize("again", [False, True])
def test_a_killed_deletion_is_completed_despite_a_new_upload(
    installation: Installation, point: str, again: bool
) -> None:
    installation.artifacts.register("x.py", CODE, "default", "me")
    before = installation.row().path
    with killed_at(point):
        installation.artifacts.delete(SHA256, "default")
    assert not installation.is_registered()
    if again:
        assert installation.artifacts.register("y.py", CODE, "default", "me")[1]
        assert installation.row().path != before
    installation.files.sweep()
    assert installation.is_registered() == again
    assert installation.stored() == ([installation.row().path] if again else [])
    assert installation.catalogued() == set(installation.stored())


def test_a_failed_write_leaves_no_row_and_no_file(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull, match=r"enough space for the artifact 'x.py'"):
        installation.artifacts.register("x.py", CODE, "default", "me")
    monkeypatch.undo()
    assert (installation.stored(), installation.catalogued()) == ([], set())


def test_another_upload_repairs_a_lost_file(installation: Installation) -> None:
    installation.artifacts.register("x.py", CODE, "default", "me")
    installation.store.delete(installation.stored()[0])
    with pytest.raises(ArtifactError, match="upload the same file again"):
        installation.cache.file(installation.row())
    assert not installation.artifacts.register("x.py", CODE, "default", "me")[1]
    assert installation.is_complete() and installation.cache.file(installation.row()).read_bytes() == CODE


def test_concurrent_registrations_and_deletions_leave_at_most_one_file(installation: Installation) -> None:
    problems: list[Exception] = []

    def work(number: int) -> None:
        for _ in range(5):
            try:
                if number % 2:
                    installation.artifacts.delete(SHA256, "default")
                else:
                    installation.artifacts.register("x.py", CODE, "default", f"me-{number}")
            except Conflict:
                pass
            except Exception as error:  # noqa: BLE001 asserted below
                problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    installation.expire_intents()
    assert installation.stored() == ([installation.row().path] if installation.is_registered() else [])
    assert installation.catalogued() == set(installation.stored())


def test_a_version_cannot_use_a_deleted_artifact(installation: Installation) -> None:
    installation.artifacts.register("x.py", CODE, "default", "me")
    installation.artifacts.delete(SHA256, "default")
    with pytest.raises(ArtifactError, match="upload it first"):
        installation.use()


def test_a_collection_spares_code_and_files_of_other_catalogs(installation: Installation) -> None:
    installation.artifacts.register("x.py", CODE, "default", "me")
    installation.store.write("artifacts/abc/of-another-catalog.py", b"")
    collection = Collection(installation.database, installation.store, clock=lambda: now() + timedelta(days=365))
    plan, deleted = collection.run(CollectionRequest(timedelta(0)))
    assert (deleted.files, plan.needed.files, plan.foreign["artifacts"].files) == (0, 1, 1)
    _, deleted = collection.run(CollectionRequest(timedelta(0), frozenset({"artifacts"})))
    assert deleted.files == 1 and installation.is_complete()


def test_artifacts_unused_for_a_week_are_collected(installation: Installation) -> None:
    def uploaded(ago: timedelta) -> None:
        with installation.database.writing() as session:
            session.execute(update(Artifact).values(uploaded_at=now() - ago, created_at=now() - timedelta(days=365)))

    installation.artifacts.register("x.py", CODE, "default", "me")
    uploaded(UNUSED_KEPT - timedelta(hours=1))
    assert installation.artifacts.delete_unused() == 0
    uploaded(UNUSED_KEPT + timedelta(hours=1))
    installation.artifacts.register("x.py", CODE, "default", "me")  # a repeated upload counts as use
    assert installation.artifacts.delete_unused() == 0
    installation.use()
    uploaded(UNUSED_KEPT + timedelta(hours=1))
    assert installation.artifacts.delete_unused() == 0

    other = b"y = 2\n"
    installation.artifacts.register("y.py", other, "default", "me")
    uploaded(UNUSED_KEPT + timedelta(hours=1))
    assert installation.artifacts.delete_unused() == 1
    installation.files.sweep()
    assert installation.stored() == [installation.row().path]


def test_the_cache_is_bounded_and_retains_copies_in_use(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ArtifactCache(installation.settings.artifact_cache_directory, installation.files, largest_bytes=25)
    copies = []
    for number in range(4):
        content = b"x = %d\n#789" % number  # ten bytes
        sha256 = installation.artifacts.register("x.py", content, "default", "me")[0].sha256
        with installation.database.reading() as session:
            copies.append(cache.file(VersionRepository(session).artifact(sha256)))
    assert all(copy.exists() for copy in copies)  # copies requested recently are in use
    for age, copy in enumerate(reversed(copies)):
        os.utime(copy, (0, 1_000_000 - age))
    monkeypatch.setattr(artifact_cache, "_IN_USE_SECONDS", 1.0)
    installation.artifacts.register("z.py", CODE, "default", "me")
    newest = cache.file(installation.row())
    assert [copy.exists() for copy in copies] == [False, False, False, True] and newest.exists()
    assert not copies[0].parent.exists()


def test_a_driver_reads_the_code_of_its_own_application_only(plane: Plane) -> None:
    used = plane.application()["artifact"]
    unused = plane.artifact({"out": "files:/elsewhere"})
    driver = plane.driver()
    content = driver.catalog.artifact(used)
    assert hashlib.sha256(content).hexdigest() == used
    path = f"/internal/v1/executions/{driver.execution}/attempts/{driver.attempt}/artifacts"
    with http_client(plane.settings, driver.ticket.token) as client:
        assert client.get(f"{path}/{unused}").status_code == 404
        assert client.get(f"{path}/{'0' * 64}").status_code == 404
        assert client.get(f"{path}/..%2F{used}").status_code in (404, 422)
    assert plane.client.get(f"{path}/{used}").status_code in (401, 403)


def test_a_driver_refuses_code_with_another_checksum(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="changed in transit"):
        fetched_graph(lambda sha256: b"other", ArtifactOrder(sha256=SHA256, filename="x.py"), {}, tmp_path)
    assert list(tmp_path.iterdir()) == []
