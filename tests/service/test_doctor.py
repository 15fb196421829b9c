"""Problems of the environment that a start and ``epochal doctor`` report, with their remedies."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import make_url, text

from epochal.errors import EnvironmentProblem, EpochalError
from epochal.service.app import create_app
from epochal.service.catalog import checks
from epochal.service.catalog.database import Database
from epochal.service.catalog.types import database_now, now
from epochal.service.commands.doctor import examine
from epochal.service.domain.checks import Finding, Verdict
from epochal.service.domain.settings import Settings
from epochal.service.runtime.store_claim import StoreMismatch, claim_store
from epochal.snapshots.ownership import owner_of
from epochal.snapshots.store import SnapshotStore
from tests.service.backups import started
from tests.service.conftest import Plane, StandInBuilder, StandInSupervisor, free_port, serving

NOBODY = 65_534


def found(settings: Settings, check: str) -> Finding:
    (finding,) = [finding for finding in examine(settings) if finding.check == check]
    return finding


def check_refused(settings: Settings, kind: type[EpochalError], message: str) -> None:
    """Check that the start of the control plane fails."""
    app = create_app(settings, lambda *_: StandInBuilder(), lambda *_: StandInSupervisor())

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(kind, match=message):
        asyncio.run(start())


def test_a_sound_installation_has_no_failed_check(plane: Plane) -> None:
    findings = {finding.check: finding for finding in examine(plane.settings)}
    assert {check for check, finding in findings.items() if finding.verdict is Verdict.FAILED} == set()
    assert {"python", "java", "pyspark", "data directory", "data disk", "catalog", "store", "store identity"} <= {
        *findings
    }
    assert "control node" in findings["nodes"].said
    assert findings["store identity"].said.startswith("The store belongs to this catalog")


def test_doctor_creates_no_files_before_the_first_start(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data")
    assert all(finding.verdict is not Verdict.FAILED for finding in examine(settings))
    assert not settings.data.exists()


def test_a_store_of_another_catalog_is_refused(plane: Plane, tmp_path: Path) -> None:
    unrelated = Settings(data=tmp_path / "unrelated", port=free_port(), store=plane.settings.store_url)
    check_refused(unrelated, StoreMismatch, "belongs to another catalog: .*--store")
    assert found(unrelated, "store identity").verdict is Verdict.FAILED
    owner = owner_of(SnapshotStore(plane.settings.store_url))
    assert owner is not None and "data/catalog.sqlite" in owner.catalog


def test_a_second_store_for_one_catalog_is_refused(settings: Settings, tmp_path: Path) -> None:
    with serving(settings):
        pass
    second = settings.model_copy(update={"store": str(tmp_path / "second")})
    check_refused(second, StoreMismatch, "a catalog has exactly one store")
    assert "The catalog uses the store" in found(second, "store identity").said


def test_a_store_without_its_snapshots_is_refused(plane: Plane) -> None:
    """As happens when its volume is not mounted."""
    plane.application()
    plane.driver().epochs(2)
    store = Path(plane.settings.store_url)
    store.rename(store.with_name("unmounted"))
    store.mkdir()
    check_refused(plane.settings, StoreMismatch, "does not hold the catalog's snapshots")
    assert (
        found(plane.settings, "store identity").remedy.startswith("they were in")
        or found(plane.settings, "store identity").verdict is Verdict.FAILED
    )


def test_a_moved_store_without_an_identity_is_adopted(settings: Settings, tmp_path: Path) -> None:
    with started(settings) as plane:
        plane.application()
        plane.driver().epochs(2)
    (Path(settings.store_url) / "epochal-store.json").unlink()
    moved = settings.model_copy(update={"store": str(tmp_path / "moved")})
    shutil.move(settings.store_url, tmp_path / "moved")
    with started(moved):
        pass
    owner = owner_of(SnapshotStore(moved.store_url))
    assert owner is not None


def test_a_read_only_store_is_refused(settings: Settings, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        folder = Path("/sys/epochal")  # not writable for root either
    else:
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o500)
    closed = settings.model_copy(update={"store": str(folder)})
    check_refused(closed, EnvironmentProblem, "cannot be (written|prepared)")


@contextmanager
def unprivileged(folder: Path) -> Iterator[None]:
    """Run the block as an unprivileged owner of the folder, because root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, -1)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o400, 0o700), (0o600, 0o500), (0o400, 0o500)])
def test_a_read_only_catalog_file_is_refused(file_mode: int, folder_mode: int) -> None:
    with TemporaryDirectory() as temporary:
        data = Path(temporary)
        database = f"sqlite:///{data}/catalog/catalog.sqlite"
        settings = Settings(data=data / "data", port=free_port(), database=database, driver_user=None)
        with started(settings):
            pass
        file = data / "catalog" / "catalog.sqlite"
        with unprivileged(data):
            file.chmod(file_mode)
            file.parent.chmod(folder_mode)
            check_refused(settings, EnvironmentProblem, "The catalog cannot be written: .* Run the control plane as")
            assert found(settings, "catalog permissions").verdict is Verdict.FAILED
            file.parent.chmod(0o700)


def test_a_catalog_in_an_impossible_folder_is_refused(settings: Settings) -> None:
    place = settings.model_copy(update={"database": "sqlite:////proc/impossible/catalog.sqlite"})
    with pytest.raises(EnvironmentProblem, match=r"Cannot create the catalog .*: /proc/impossible: .* --database"):
        create_app(place, lambda *_: StandInBuilder(), lambda *_: StandInSupervisor())


def test_a_start_warns_of_a_wrong_clock(
    settings: Settings,
    postgresql_catalog_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "database_now", lambda session: database_now(session) - timedelta(minutes=5))
    with started(settings.model_copy(update={"database": postgresql_catalog_url})):
        pass
    assert "This node's clock is 300.0 s ahead of the database's" in caplog.text


def test_a_wrong_clock_is_a_warning(postgresql_catalog_url: str) -> None:
    database = Database(postgresql_catalog_url)
    findings = {
        finding.check: finding for finding in checks.catalog_findings(database, lambda: now() + timedelta(minutes=5))
    }
    assert findings["clock"].verdict is Verdict.WARNING
    assert "300.0 s ahead of the database's" in findings["clock"].said and "NTP" in findings["clock"].remedy
    right = {finding.check: finding for finding in checks.catalog_findings(database)}
    assert right["clock"].verdict is Verdict.OK
    database.close()


def test_a_postgresql_server_that_is_too_old_is_refused(
    settings: Settings, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "OLDEST_POSTGRESQL", 99)
    old = settings.model_copy(update={"database": postgresql_url})
    check_refused(old, EnvironmentProblem, "Epochal needs 99 or later. Upgrade")
    assert found(old, "catalog version").verdict is Verdict.FAILED


def test_a_role_with_read_access_only_is_refused(settings: Settings, postgresql_catalog_url: str) -> None:
    with as_role(postgresql_catalog_url, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}") as url:
        reader = settings.model_copy(update={"database": url})
        check_refused(reader, EnvironmentProblem, "lacks INSERT on .* GRANT SELECT, INSERT")
        assert "GRANT" in found(reader, "catalog permissions").remedy


def test_a_role_that_cannot_create_tables_suffices_for_a_current_catalog(
    settings: Settings, postgresql_catalog_url: str, postgresql_url: str
) -> None:
    grants = (
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}; "
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"
    )
    with as_role(postgresql_catalog_url, grants) as url, serving(settings.model_copy(update={"database": url})):
        pass
    with as_role(postgresql_url, "SELECT 1") as url:
        check_refused(settings.model_copy(update={"database": url}), EnvironmentProblem, "may not create tables")


def test_a_read_only_database_is_refused(settings: Settings, postgresql_catalog_url: str) -> None:
    url = make_url(postgresql_catalog_url)
    read_only = url.update_query_dict({"options": "-c default_transaction_read_only=on"})
    closed = settings.model_copy(update={"database": read_only.render_as_string(hide_password=False)})
    check_refused(closed, EnvironmentProblem, "is read-only")


def test_a_start_warns_without_synchronous_replication(
    settings: Settings, postgresql_catalog_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with started(settings.model_copy(update={"database": postgresql_catalog_url})):
        pass
    replication = found(settings.model_copy(update={"database": postgresql_catalog_url}), "catalog replication")
    assert replication.verdict is Verdict.WARNING
    assert replication.said in caplog.text


def test_an_unreachable_database_is_a_failed_check(settings: Settings) -> None:
    unreachable = settings.model_copy(update={"database": f"postgresql://user@127.0.0.1:{free_port()}/none"})
    finding = found(unreachable, "catalog")
    assert finding.verdict is Verdict.FAILED and "cannot be reached" in finding.said


@contextmanager
def as_role(url: str, grants: str) -> Iterator[str]:
    """The URL of a new role with these grants."""
    owner = Database(url)
    role = f"role_{make_url(url).database}".lower()
    statements = [
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        f"GRANT USAGE ON SCHEMA public TO {role}",
        *grants.format(role=role).split("; "),
    ]
    with owner.writing() as session:
        for statement in statements:
            session.execute(text(statement))
    try:
        yield make_url(url).set(username=role, password="x").render_as_string(hide_password=False)
    finally:
        with owner.writing() as session:
            session.execute(text(f"DROP OWNED BY {role}"))
            session.execute(text(f"DROP ROLE {role}"))
        owner.close()


def test_control_planes_that_start_concurrently_agree_on_the_store(postgresql_catalog_url: str, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "store"))

    def start(_: int) -> None:
        database = Database(postgresql_catalog_url)
        try:
            claim_store(database, store)
        finally:
            database.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(start, range(6)))
    start(0)
