"""Artifacts in the store: registered and deleted by anybody at any time, killed at any step; nothing is left over."""

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
    """Nothing that a process would still do when it is killed catches it."""


@dataclass
class House:
    """A control plane's side of artifacts, over a catalog and a store that others may share."""

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

    def is_whole(self) -> bool:
        """An artifact that is there has its bytes."""
        return self.store.read(self.row().path or "") == CODE

    def days_pass(self) -> None:
        """What was intended, and nobody has made anything of, expires."""
        with self.database.writing() as session:
            session.execute(
                update(StoreFile).where(StoreFile.expires_at.is_not(None)).values(expires_at=now() - timedelta(1))
            )
        self.files.sweep()

    def named(self) -> set[str]:
        with self.database.reading() as session:
            return {row.path for row in session.query(StoreFile)}

    def use(self) -> None:
        with self.database.writing() as session:
            row = ApplicationRepository(session).add("flights", BranchOrigin("start"), shadow=False, by="me")
            VersionRepository(session).add(row, 1, SHA256, {}, ApplicationConfiguration(), None, "me")


@pytest.fixture(params=["sqlite", "postgresql"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    url = None if request.param == "sqlite" else str(request.getfixturevalue("postgresql_catalog_url"))
    settings = Settings(data=tmp_path / "data", database=url, store=str(tmp_path / "store"))
    if url is None:
        new_sqlite_catalog(settings.data / "catalog.sqlite")
    database = Database(settings.database_url)
    yield House(settings, database)
    database.close()


@contextmanager
def killed_at(point: str) -> Iterator[None]:
    def kill(hit: FaultPoint, epoch: int | None) -> None:
        if hit.name == point:
            raise Killed

    with injected(kill), pytest.raises(Killed):
        yield


@pytest.mark.parametrize("point", ["file.intended", "file.written"])
def test_a_registration_that_is_killed_leaves_nothing(house: House, point: str) -> None:
    with killed_at(point):
        house.artifacts.register("x.py", CODE, "default", "me")
    assert not house.is_registered()
    house.days_pass()
    assert (house.stored(), house.named()) == ([], set())


@pytest.mark.parametrize("point", ["file.intended", "file.written"])
def test_after_a_registration_that_was_killed_another_one_registers(house: House, point: str) -> None:
    with killed_at(point):
        house.artifacts.register("x.py", CODE, "default", "me")
    house.artifacts.register("x.py", CODE, "default", "me")
    house.days_pass()
    assert house.is_whole() and house.stored() == [house.row().path] and house.named() == {house.row().path}


@pytest.mark.parametrize("point", ["artifact.given-up", "file.deleted"])
@pytest.mark.parametrize("again", [False, True])
def test_a_deletion_that_is_killed_is_finished_whoever_uploads_meanwhile(house: House, point: str, again: bool) -> None:
    house.artifacts.register("x.py", CODE, "default", "me")
    before = house.row().path
    with killed_at(point):
        house.artifacts.delete(SHA256, "default")
    assert not house.is_registered()
    if again:
        assert house.artifacts.register("y.py", CODE, "default", "me")[1]
        assert house.row().path != before
    house.files.sweep()
    assert house.is_registered() == again
    assert house.stored() == ([house.row().path] if again else [])
    assert house.named() == set(house.stored())


def test_a_file_that_cannot_be_written_is_named_by_nobody(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull, match=r"enough space for the artifact 'x.py'"):
        house.artifacts.register("x.py", CODE, "default", "me")
    monkeypatch.undo()
    assert (house.stored(), house.named()) == ([], set())


def test_a_file_that_was_lost_is_repaired_by_uploading_it_again(house: House) -> None:
    house.artifacts.register("x.py", CODE, "default", "me")
    house.store.delete(house.stored()[0])
    with pytest.raises(ArtifactError, match="upload the same file again"):
        house.cache.file(house.row())
    assert not house.artifacts.register("x.py", CODE, "default", "me")[1]
    assert house.is_whole() and house.cache.file(house.row()).read_bytes() == CODE


def test_many_at_once_leave_one_file_or_none(house: House) -> None:
    """Some register, some delete; whoever finds the artifact at the end finds its bytes."""
    problems: list[Exception] = []

    def work(number: int) -> None:
        for _ in range(5):
            try:
                if number % 2:
                    house.artifacts.delete(SHA256, "default")
                else:
                    house.artifacts.register("x.py", CODE, "default", f"me-{number}")
            except Conflict:
                pass
            except Exception as error:  # noqa: BLE001 shown at the end
                problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    house.days_pass()
    assert house.stored() == ([house.row().path] if house.is_registered() else [])
    assert house.named() == set(house.stored())


def test_no_version_is_made_of_an_artifact_that_is_deleted_meanwhile(house: House) -> None:
    house.artifacts.register("x.py", CODE, "default", "me")
    house.artifacts.delete(SHA256, "default")
    with pytest.raises(ArtifactError, match="upload it first"):
        house.use()


def test_a_collection_takes_neither_code_for_garbage_nor_another_catalogs_files(house: House) -> None:
    house.artifacts.register("x.py", CODE, "default", "me")
    house.store.write("artifacts/abc/of-another-catalog.py", b"")
    collection = Collection(house.database, house.store, clock=lambda: now() + timedelta(days=365))
    plan, deleted = collection.run(CollectionRequest(timedelta(0)))
    assert (deleted.files, plan.needed.files, plan.foreign["artifacts"].files) == (0, 1, 1)
    _, deleted = collection.run(CollectionRequest(timedelta(0), frozenset({"artifacts"})))
    assert deleted.files == 1 and house.is_whole()


def test_what_nobody_has_used_for_a_week_is_collected(house: House) -> None:
    def uploaded(ago: timedelta) -> None:
        with house.database.writing() as session:
            session.execute(update(Artifact).values(uploaded_at=now() - ago, created_at=now() - timedelta(days=365)))

    house.artifacts.register("x.py", CODE, "default", "me")
    uploaded(UNUSED_KEPT - timedelta(hours=1))
    assert house.artifacts.delete_unused() == 0
    uploaded(UNUSED_KEPT + timedelta(hours=1))
    house.artifacts.register("x.py", CODE, "default", "me")  # whoever uploads it again is about to use it
    assert house.artifacts.delete_unused() == 0
    house.use()
    uploaded(UNUSED_KEPT + timedelta(hours=1))
    assert house.artifacts.delete_unused() == 0

    other = b"y = 2\n"
    house.artifacts.register("y.py", other, "default", "me")
    uploaded(UNUSED_KEPT + timedelta(hours=1))
    assert house.artifacts.delete_unused() == 1
    house.files.sweep()
    assert house.stored() == [house.row().path]


def test_copies_are_bounded_and_those_in_use_stay(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ArtifactCache(house.settings.artifact_cache_directory, house.files, largest_bytes=25)
    copies = []
    for number in range(4):
        content = b"x = %d\n#789" % number  # ten bytes
        sha256 = house.artifacts.register("x.py", content, "default", "me")[0].sha256
        with house.database.reading() as session:
            copies.append(cache.file(VersionRepository(session).artifact(sha256)))
    assert all(copy.exists() for copy in copies)  # each was asked for a moment ago
    for age, copy in enumerate(reversed(copies)):
        os.utime(copy, (0, 1_000_000 - age))
    monkeypatch.setattr(artifact_cache, "_IN_USE_SECONDS", 1.0)
    house.artifacts.register("z.py", CODE, "default", "me")
    newest = cache.file(house.row())
    assert [copy.exists() for copy in copies] == [False, False, False, True] and newest.exists()
    assert not copies[0].parent.exists()


def test_a_driver_gets_the_code_of_its_own_application_and_no_other(plane: Plane) -> None:
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


def test_a_driver_runs_no_other_code_than_it_was_ordered_to(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="changed in transit"):
        fetched_graph(lambda sha256: b"other", ArtifactOrder(sha256=SHA256, filename="x.py"), {}, tmp_path)
    assert list(tmp_path.iterdir()) == []
