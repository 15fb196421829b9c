"""The reconciler on a real catalog: how it recognises, adopts, gives up and ends processes. Drivers are entries of a
list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import update

from epochal.contracts.catalog import DriverStatus, Failure
from epochal.driver.orders import DriverOrders
from epochal.errors import CatalogUnavailable, Conflict, LauncherUnavailable
from epochal.service.catalog.database import Database
from epochal.service.catalog.ledger import ExecutionLedger
from epochal.service.catalog.models import Attempt, Execution
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.domain.executions import DriverName
from epochal.service.domain.ports import Leading
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision import SupervisionSettings
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.machine import Machine
from epochal.service.runtime.supervision.reconciler import Reconciler
from epochal.service.runtime.supervision.supervisor import LocalCleanup
from tests.kit.catalogs import url as url
from tests.kit.waiting import eventually

HERE = Machine("here", "second-boot")
UP_SECONDS = 1000.0
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LOST = Failure(type="driver-lost", message="process has terminated")


@dataclass
class Processes(Launcher):
    """Running processes by name, and the references of killed ones."""

    running: dict[DriverName, ProcessReference] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    while_listing: Callable[[], None] = lambda: None
    cause: str | None = None
    """The cause that is reported for every driver that does not run."""
    unavailable: bool = False

    def check(self) -> None:
        if self.unavailable:
            raise LauncherUnavailable("The cluster does not answer.")

    def explain(self, reference: ProcessReference) -> str | None:
        return self.cause

    def launch(self, orders: DriverOrders) -> ProcessReference:
        name = DriverName(orders.execution, orders.attempt)
        return self.running.setdefault(name, ProcessReference(identity=f"{len(self.running) + 1}@1", machine=HERE))

    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        found = dict(self.running)
        self.while_listing()
        return found

    def alive(self, reference: ProcessReference) -> bool:
        self.check()
        return reference.identity in {running.identity for running in self.running.values()}

    def exit_code(self, reference: ProcessReference) -> int | None:
        return None

    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        self.killed.append(str(reference))
        self.running = {name: other for name, other in self.running.items() if other != reference}


class ScriptedLeadership:
    """A control plane that has led for a long time, until a test changes that."""

    def __init__(self) -> None:
        self.now: Leading | None = Leading(1, LONG_AGO)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def leading(self) -> Leading | None:
        return self.now


class Subject:
    """One execution with a running attempt, which has the number 1."""

    def __init__(self, url: str, folder: Path) -> None:
        configuration = {"restart": {"backoff_seconds": 0.001}}
        self.driver: SqlCatalog = standalone_catalog(url, "flights", "a" * 64, configuration=configuration)
        self.execution = self.driver.execution
        self.database = Database(url)
        self.settings = Settings(data=folder, database=url)
        self.ledger = ExecutionLedger(self.database)
        self.processes = Processes()
        self.leadership = ScriptedLeadership()
        self.answers_drivers = True
        supervision = SupervisionSettings(lease_seconds=10, start_seconds=10, grace_seconds=30)
        self.reconciler = Reconciler(
            self.settings,
            self.ledger,
            self.processes,
            self.leadership,
            supervision,
            HERE,
            lambda: UP_SECONDS,
            lambda: self.answers_drivers,
        )
        self.cleanup = LocalCleanup(self.settings, self.ledger, self.processes, supervision)

    def close(self) -> None:
        self.database.close()
        self.driver._database.close()

    @property
    def name(self) -> DriverName:
        return DriverName(self.execution, 1)

    @property
    def attempts(self) -> list[tuple[str, str | None]]:
        supervised = self.ledger.supervised().executions
        return [(attempt.state, attempt.process) for attempt in supervised[0].attempts]

    def launched(self, reference: ProcessReference, runs: bool = True) -> None:
        self.ledger.launched(self.execution, 1, str(reference))
        if runs:
            self.processes.running[self.name] = reference

    def send_heartbeat(self) -> datetime | None:
        self.driver.begin_attempt()
        self.driver.heartbeat(DriverStatus(phase="running", epoch=None))
        return self.ledger.supervised().executions[0].heartbeat_at

    def set_last_heartbeat(self, moment: datetime) -> None:
        """Set the last heartbeat and the start of the attempt to ``moment``."""
        with self.database.writing() as session:
            session.execute(update(Execution).values(heartbeat_at=moment))
            session.execute(update(Attempt).values(started_at=moment))


@pytest.fixture
def subject(url: str, tmp_path: Path) -> Iterator[Subject]:
    made = Subject(url, tmp_path / "data")
    yield made
    made.close()


def test_process_references_without_a_host_are_local(subject: Subject) -> None:
    """References in this form were written by versions without support for several machines."""
    subject.launched(ProcessReference.parse("4711@39181"))
    subject.reconciler.round()
    assert subject.attempts == [("running", "4711@39181")]

    subject.processes.running.clear()
    subject.reconciler.round()

    assert [state for state, _ in subject.attempts] == ["lost"]


def test_remote_process_is_judged_by_its_heartbeats_only(subject: Subject) -> None:
    remote = ProcessReference(identity="1@1", machine=Machine("there", "boot"))
    subject.launched(remote, runs=False)
    subject.send_heartbeat()
    subject.reconciler.round()
    assert subject.attempts == [("running", str(remote))]

    subject.set_last_heartbeat(LONG_AGO)
    subject.reconciler._unbroken_since = LONG_AGO  # as after listening the whole time
    subject.reconciler.round()

    assert [state for state, _ in subject.attempts] == ["lost"]
    failure = subject.ledger.supervised().executions[0].attempts[0].failure
    assert failure is not None and "It was started on there." in failure.message
    assert subject.processes.killed == []  # its own control plane kills it during cleanup


def test_process_of_an_earlier_boot_has_terminated(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=Machine("here", "first-boot")), runs=False)
    subject.reconciler.round()
    assert [state for state, _ in subject.attempts] == ["lost"]


def test_heartbeat_after_the_boot_proves_a_machine_of_equal_name(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=Machine("here", "first-boot")), runs=False)
    subject.send_heartbeat()
    subject.reconciler.round()
    assert [state for state, _ in subject.attempts] == ["running"]


def test_driver_with_an_unrecorded_launch_is_found_by_name(subject: Subject) -> None:
    reference = ProcessReference(identity="7@1", machine=HERE)
    subject.processes.running[subject.name] = reference
    subject.reconciler.round()
    assert subject.attempts == [("running", str(reference))]
    assert ProcessReference.parse(str(reference)) == reference


def test_unrecorded_launch_is_neither_killed_nor_repeated(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.ledger.attempt_ended(subject.execution, 1, "lost", LOST)

    def lost(*_: object) -> None:
        raise CatalogUnavailable("unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subject.ledger, "launched", lost)
        for _ in range(100):
            subject.reconciler.round()
            if subject.processes.running:
                break
    subject.reconciler.round()
    assert [(state, process is not None) for state, process in subject.attempts] == [("lost", False), ("running", True)]
    assert subject.processes.killed == [] and len(subject.processes.running) == 1


def test_driver_with_a_newer_heartbeat_is_not_given_up(subject: Subject) -> None:
    """A control plane may be suspended between its decision and its action."""
    decided_on = subject.send_heartbeat()
    subject.driver.heartbeat(DriverStatus(phase="running", epoch=None))
    subject.set_last_heartbeat(LONG_AGO)
    with pytest.raises(Conflict, match="sent a heartbeat in the meantime"):
        subject.ledger.attempt_lost(subject.execution, 1, decided_on, LOST)
    assert [state for state, _ in subject.attempts] == ["running"]
    subject.ledger.attempt_lost(subject.execution, 1, LONG_AGO, LOST)
    assert [state for state, _ in subject.attempts] == ["lost"]


def test_control_plane_without_leadership_decides_nothing(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=HERE), runs=False)
    subject.leadership.now = None
    subject.reconciler.round()
    assert [state for state, _ in subject.attempts] == ["running"]


def test_new_leader_gives_every_driver_a_full_timeout(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=HERE))
    subject.set_last_heartbeat(LONG_AGO)
    subject.reconciler.round()
    assert [state for state, _ in subject.attempts] == ["running"]
    assert subject.reconciler._unbroken_since is not None
    subject.reconciler._unbroken_since = LONG_AGO
    subject.leadership.now = Leading(2, subject.ledger.supervised().at)  # the catalog was not writable before
    subject.reconciler.round()
    assert [state for state, _ in subject.attempts] == ["running"]


def test_missing_heartbeats_during_an_outage_do_not_count(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=HERE))
    subject.send_heartbeat()
    subject.reconciler.round()
    subject.set_last_heartbeat(LONG_AGO)
    for answers_drivers, state in ((False, "running"), (True, "running")):
        subject.reconciler._unbroken_since = LONG_AGO if not answers_drivers else subject.reconciler._unbroken_since
        subject.answers_drivers = answers_drivers
        subject.reconciler.round()
        assert [state for state, _ in subject.attempts] == [state]
    subject.reconciler._unbroken_since = LONG_AGO  # as after listening the whole time
    subject.reconciler.round()
    assert [state for state, _ in subject.attempts] == ["lost"]


def test_cleanup_ends_processes_of_older_attempts_only(subject: Subject) -> None:
    """Cleanup runs with and without leadership. Unknown processes are kept: they belong to another catalog."""
    subject.leadership.now = None
    subject.ledger.attempt_ended(subject.execution, 1, "lost", LOST)
    ticket = subject.ledger.new_attempt(subject.execution)
    lost, current = subject.name, DriverName(subject.execution, ticket.attempt)
    unknown = DriverName("0" * 32, 1)
    for number, name in enumerate((lost, current, unknown)):
        subject.processes.running[name] = ProcessReference(identity=f"{number}@1", machine=HERE)

    subject.cleanup.clear()

    assert set(subject.processes.running) == {current, unknown}
    assert subject.processes.killed == ["//here/second-boot/0@1"]


def test_finished_driver_has_time_to_terminate(subject: Subject) -> None:
    subject.driver.begin_attempt()
    subject.driver.finish(None)
    subject.processes.running[subject.name] = ProcessReference(identity="1@1", machine=HERE)
    work = subject.settings.work_directory / subject.execution
    work.mkdir(parents=True)
    subject.cleanup.clear()
    assert subject.name in subject.processes.running and work.exists()

    with subject.database.writing() as session:
        session.execute(update(Attempt).values(ended_at=LONG_AGO))
    subject.cleanup.clear()
    subject.cleanup.clear()

    assert subject.processes.running == {} and not work.exists()


def test_cleanup_keeps_a_driver_launched_concurrently(subject: Subject) -> None:
    """The driver is launched by another control plane on the same machine."""
    subject.ledger.attempt_ended(subject.execution, 1, "lost", LOST)

    def launch() -> None:
        attempt = subject.ledger.new_attempt(subject.execution).attempt
        name = DriverName(subject.execution, attempt)
        subject.processes.running[name] = ProcessReference(identity="9@1", machine=HERE)
        (subject.settings.work_directory / subject.execution).mkdir(parents=True)
        subject.processes.while_listing = lambda: None

    subject.processes.while_listing = launch
    subject.cleanup.clear()
    assert subject.processes.killed == []
    assert (subject.settings.work_directory / subject.execution).exists()


def test_cause_of_a_delayed_start_is_shown(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1"))
    subject.processes.cause = "No node takes the pod."
    subject.reconciler.round()
    assert subject.ledger.supervised().executions[0].detail == "No node takes the pod."
    subject.send_heartbeat()
    subject.processes.cause = "Something else."
    subject.reconciler.round()
    assert subject.ledger.supervised().executions[0].detail is None  # from here on the driver reports its own state


def test_failure_contains_the_cause_known_to_the_launcher(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1"), runs=False)
    subject.processes.cause = "The image 'x' cannot be pulled."
    subject.reconciler.round()
    failure = subject.ledger.supervised().executions[0].attempts[0].failure
    assert failure is not None
    assert (failure.type, failure.message.partition(" Its log")[0]) == ("driver-lost", subject.processes.cause)


def test_nothing_is_launched_or_given_up_while_the_launcher_fails(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1"), runs=False)
    subject.processes.unavailable = True
    subject.reconciler.round()
    assert [state for state, _ in subject.attempts] == ["running"]
    subject.ledger.attempt_ended(subject.execution, 1, "lost", LOST)
    for _ in range(3):
        subject.reconciler.round()
    assert [state for state, _ in subject.attempts] == ["lost"]  # no attempt is used up in the meantime
    subject.processes.unavailable = False

    def launched() -> bool:
        subject.reconciler.round()
        return [state for state, _ in subject.attempts] == ["lost", "running"]

    eventually(launched)


def test_resources_of_an_ended_driver_are_removed_immediately(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod exists until it is removed."""
    subject.driver.begin_attempt()
    subject.driver.finish(None)
    subject.processes.running[subject.name] = ProcessReference(identity="1@1", machine=HERE)
    monkeypatch.setattr(subject.processes, "alive", lambda _: False)
    subject.cleanup.clear()
    assert subject.processes.running == {}
