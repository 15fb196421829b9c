"""Who supervises: one control plane of a catalog, whatever data folders there are and however the first one ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochal.service.api.context import ControlPlane
from epochal.service.app import create_app
from epochal.service.catalog.database import Database
from epochal.service.catalog.migration import migrate_database
from epochal.service.catalog.models import Supervisor
from epochal.service.catalog.supervision import SupervisorHeartbeat
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision.settings import SupervisionSettings
from epochal.service.runtime.launchers.local import LocalLauncher
from epochal.service.runtime.supervision.lock import SupervisionLock
from epochal.service.runtime.supervision.right import SupervisedElsewhere
from epochal.service.runtime.supervision.supervisor import ThreadedSupervisor
from tests.service.conftest import StandInBuilder

FOR_EVER = 1000.0
AT_ONCE = SupervisionSettings(round_seconds=0.02, heartbeat_seconds=0.02, supervisor_seconds=FOR_EVER, claim_seconds=0)
PATIENT = AT_ONCE.model_copy(update={"supervisor_seconds": 1.0, "claim_seconds": 60})

UNTIL_KILLED = """
import sys
from pathlib import Path
from epochal.service.catalog.database import Database
from epochal.service.catalog.ledger import ExecutionLedger
from epochal.service.runtime.launchers.local import LocalLauncher
from epochal.service.domain.settings import Settings
from epochal.service.runtime.supervision.supervisor import ThreadedSupervisor

settings = Settings(data=Path(sys.argv[1]), database=sys.argv[2])
ledger = ExecutionLedger(settings, Database(settings.database_url))
ThreadedSupervisor(settings, ledger, LocalLauncher(settings.logs_directory)).open()
print("supervises", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    migrate_database(database)
    yield database
    database.close()


@contextmanager
def control_plane(data: Path, url: str, supervision: SupervisionSettings) -> Iterator[ControlPlane]:
    """A real one, but for the builder; it launches nothing, since nothing is submitted."""
    settings = Settings(data=data, database=url)
    launcher = LocalLauncher(settings.logs_directory)
    app = create_app(
        settings,
        lambda *_: StandInBuilder(),
        lambda _settings, _user, executions: ThreadedSupervisor(settings, executions, launcher, supervision),
    )
    lifespan = app.router.lifespan_context(app)
    with asyncio.Runner() as runner:
        runner.run(lifespan.__aenter__())  # type: ignore[arg-type]
        try:
            yield app.state.control_plane
        finally:
            runner.run(lifespan.__aexit__(None, None, None))  # type: ignore[arg-type]


def supervising_folder(database: Database) -> str | None:
    """The data folder of the control plane that supervises."""
    with database.reading() as session:
        row = session.get(Supervisor, 1)
        return None if row is None else row.data


def test_a_second_one_on_another_data_folder_is_refused_and_told_what_to_do(
    database: Database, url: str, tmp_path: Path
) -> None:
    with control_plane(tmp_path / "first", url, AT_ONCE):
        with pytest.raises(SupervisedElsewhere) as refusal, control_plane(tmp_path / "second", url, AT_ONCE):
            pass

        assert str(tmp_path / "first") in refusal.value.message and "Stop that one first" in refusal.value.message
        assert supervising_folder(database) == str(tmp_path / "first")
    assert supervising_folder(database) is None


def test_after_a_clean_stop_another_data_folder_supervises_at_once(
    database: Database, url: str, tmp_path: Path
) -> None:
    with control_plane(tmp_path / "first", url, AT_ONCE):
        pass
    with control_plane(tmp_path / "second", url, AT_ONCE):
        assert supervising_folder(database) == str(tmp_path / "second")


def test_heartbeats_go_on_and_are_waited_for_no_longer_than_allowed(
    database: Database, url: str, tmp_path: Path
) -> None:
    """The first one is older than the time after which it would be gone, had its heartbeats ended."""
    brief = PATIENT.model_copy(update={"claim_seconds": 2.0})
    with control_plane(tmp_path / "first", url, AT_ONCE):
        with pytest.raises(SupervisedElsewhere), control_plane(tmp_path / "second", url, brief):
            pass
        assert supervising_folder(database) == str(tmp_path / "first")


@pytest.mark.slow
def test_a_killed_one_is_followed_at_once_on_its_data_folder_and_soon_on_another(
    database: Database, url: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    command = [sys.executable, "-c", UNTIL_KILLED, str(first), url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "supervises\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert supervising_folder(database) == str(first)

    with control_plane(second, url, PATIENT):
        assert supervising_folder(database) == str(second)
    lock = SupervisionLock(first / "supervisor.lock")
    assert lock.acquire()
    assert SupervisorHeartbeat(database, first).send(lock.folder, FOR_EVER) is None  # as the killed one left it
    lock.release()
    with pytest.raises(SupervisedElsewhere), control_plane(second, url, AT_ONCE):
        pass
    with control_plane(first, url, AT_ONCE):
        assert supervising_folder(database) == str(first)


def test_one_that_was_paused_for_too_long_does_not_supervise_any_more(database: Database, tmp_path: Path) -> None:
    paused = SupervisorHeartbeat(database, tmp_path / "first")
    successor = SupervisorHeartbeat(database, tmp_path / "second")
    assert paused.send("one", FOR_EVER) is None
    assert successor.send("two", FOR_EVER) is not None

    assert successor.send("two", timeout_seconds=-1) is None

    supervises = paused.send("one", FOR_EVER)
    assert supervises is not None and supervises.data == tmp_path / "second"
    paused.end()
    assert supervising_folder(database) == str(tmp_path / "second")


def test_a_copied_data_folder_is_another_one(tmp_path: Path) -> None:
    original, copy = SupervisionLock(tmp_path / "one"), SupervisionLock(tmp_path / "two")
    assert original.acquire()
    (tmp_path / "two").write_bytes((tmp_path / "one").read_bytes())
    assert copy.acquire()
    again = SupervisionLock(tmp_path / "one")

    assert original.folder != copy.folder
    name = original.folder
    original.release()
    assert again.acquire() and again.folder == name
