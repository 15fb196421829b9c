"""Supervision by the real catalog: which processes it believes, adopts, gives up and ends. Drivers are entries of a
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
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.waiting import eventually

HERE = Machine("here", "second-boot")
UP_SECONDS = 1000.0
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
LOST = Failure(type="driver-lost", message="gone")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return new_sqlite_catalog(tmp_path / "catalog.sqlite")
    return str(request.getfixturevalue("postgresql_catalog_url"))


@dataclass
class Processes(Launcher):
    """Those that run, by name; those that were ended."""

    running: dict[DriverName, ProcessReference] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    looking: Callable[[], None] = lambda: None
    cause: str | None = None
    """Of every driver that does not run as it should."""
    away: bool = False

    def check(self) -> None:
        if self.away:
            raise LauncherUnavailable("The cluster does not answer.")

    def explain(self, reference: ProcessReference) -> str | None:
        return self.cause

    def launch(self, orders: DriverOrders) -> ProcessReference:
        name = DriverName(orders.execution, orders.attempt)
        return self.running.setdefault(name, ProcessReference(identity=f"{len(self.running) + 1}@1", machine=HERE))

    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        found = dict(self.running)
        self.looking()
        return found

    def alive(self, reference: ProcessReference) -> bool:
        self.check()
        return reference.identity in {running.identity for running in self.running.values()}

    def exit_code(self, reference: ProcessReference) -> int | None:
        return None

    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        self.killed.append(str(reference))
        self.running = {name: other for name, other in self.running.items() if other != reference}


class Leads:
    """A control plane that leads for long, until it does not."""

    def __init__(self) -> None:
        self.now: Leading | None = Leading(1, LONG_AGO)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def leading(self) -> Leading | None:
        return self.now


class Subject:
    """One execution with a running attempt, which is number 1."""

    def __init__(self, url: str, folder: Path) -> None:
        configuration = {"restart": {"backoff_seconds": 0.001}}
        self.driver: SqlCatalog = standalone_catalog(url, "flights", "a" * 64, configuration=configuration)
        self.execution = self.driver.execution
        self.database = Database(url)
        self.settings = Settings(data=folder, database=url)
        self.ledger = ExecutionLedger(self.database)
        self.processes = Processes()
        self.leads = Leads()
        self.hears = True
        supervision = SupervisionSettings(lease_seconds=10, start_seconds=10, grace_seconds=30)
        self.rounds = Reconciler(
            self.settings,
            self.ledger,
            self.processes,
            self.leads,
            supervision,
            HERE,
            lambda: UP_SECONDS,
            lambda: self.hears,
        )
        self.remains = LocalCleanup(self.settings, self.ledger, self.processes, supervision)

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

    def heard(self) -> datetime | None:
        self.driver.begin_attempt()
        self.driver.heartbeat(DriverStatus(phase="running", epoch=None))
        return self.ledger.supervised().executions[0].heartbeat_at

    def silent_since(self, moment: datetime) -> None:
        """Nothing was heard, and nothing happened, after this."""
        with self.database.writing() as session:
            session.execute(update(Execution).values(heartbeat_at=moment))
            session.execute(update(Attempt).values(started_at=moment))


@pytest.fixture
def subject(url: str, tmp_path: Path) -> Iterator[Subject]:
    made = Subject(url, tmp_path / "data")
    yield made
    made.close()


def test_process_references_without_a_host_are_of_this_machine(subject: Subject) -> None:
    """As versions that knew no other machine have left them."""
    subject.launched(ProcessReference.parse("4711@39181"))
    subject.rounds.round()
    assert subject.attempts == [("running", "4711@39181")]

    subject.processes.running.clear()
    subject.rounds.round()

    assert [state for state, _ in subject.attempts] == ["lost"]


def test_a_process_of_another_machine_is_known_by_its_heartbeats_alone(subject: Subject) -> None:
    elsewhere = ProcessReference(identity="1@1", machine=Machine("there", "boot"))
    subject.launched(elsewhere, runs=False)
    subject.heard()
    subject.rounds.round()
    assert subject.attempts == [("running", str(elsewhere))]

    subject.silent_since(LONG_AGO)
    subject.rounds._unbroken_since = LONG_AGO  # as if it had listened ever since
    subject.rounds.round()

    assert [state for state, _ in subject.attempts] == ["lost"]
    failure = subject.ledger.supervised().executions[0].attempts[0].failure
    assert failure is not None and "It was started on there." in failure.message
    assert subject.processes.killed == []  # by its own control plane, once it looks what is left


def test_a_process_of_an_earlier_start_of_this_machine_is_gone(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=Machine("here", "first-boot")), runs=False)
    subject.rounds.round()
    assert [state for state, _ in subject.attempts] == ["lost"]


def test_one_that_was_heard_since_this_machine_was_started_is_of_another_one_with_its_name(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=Machine("here", "first-boot")), runs=False)
    subject.heard()
    subject.rounds.round()
    assert [state for state, _ in subject.attempts] == ["running"]


def test_a_driver_whose_launch_was_not_written_down_is_found_by_its_name(subject: Subject) -> None:
    reference = ProcessReference(identity="7@1", machine=HERE)
    subject.processes.running[subject.name] = reference
    subject.rounds.round()
    assert subject.attempts == [("running", str(reference))]
    assert ProcessReference.parse(str(reference)) == reference


def test_a_launch_whose_record_is_lost_is_neither_killed_nor_repeated(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject.ledger.attempt_ended(subject.execution, 1, "lost", LOST)

    def lost(*_: object) -> None:
        raise CatalogUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(subject.ledger, "launched", lost)
        for _ in range(100):
            subject.rounds.round()
            if subject.processes.running:
                break
    subject.rounds.round()
    assert [(state, process is not None) for state, process in subject.attempts] == [("lost", False), ("running", True)]
    assert subject.processes.killed == [] and len(subject.processes.running) == 1


def test_what_was_heard_in_the_meantime_is_not_given_up(subject: Subject) -> None:
    """A control plane may be stopped for long between its decision and its act."""
    decided_on = subject.heard()
    subject.driver.heartbeat(DriverStatus(phase="running", epoch=None))
    subject.silent_since(LONG_AGO)
    with pytest.raises(Conflict, match="sent a heartbeat in the meantime"):
        subject.ledger.attempt_lost(subject.execution, 1, decided_on, LOST)
    assert [state for state, _ in subject.attempts] == ["running"]
    subject.ledger.attempt_lost(subject.execution, 1, LONG_AGO, LOST)
    assert [state for state, _ in subject.attempts] == ["lost"]


def test_nothing_is_decided_by_one_that_does_not_lead(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=HERE), runs=False)
    subject.leads.now = None
    subject.rounds.round()
    assert [state for state, _ in subject.attempts] == ["running"]


def test_who_begins_to_lead_gives_every_driver_a_whole_timeout(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=HERE))
    subject.silent_since(LONG_AGO)
    subject.rounds.round()
    assert [state for state, _ in subject.attempts] == ["running"]
    assert subject.rounds._unbroken_since is not None
    subject.rounds._unbroken_since = LONG_AGO
    subject.leads.now = Leading(2, subject.ledger.supervised().at)  # the catalog could not be written before
    subject.rounds.round()
    assert [state for state, _ in subject.attempts] == ["running"]


def test_silence_while_this_control_plane_could_not_answer_drivers_proves_nothing(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1", machine=HERE))
    subject.heard()
    subject.rounds.round()
    subject.silent_since(LONG_AGO)
    for hears, state in ((False, "running"), (True, "running")):
        subject.rounds._unbroken_since = LONG_AGO if not hears else subject.rounds._unbroken_since
        subject.hears = hears
        subject.rounds.round()
        assert [state for state, _ in subject.attempts] == [state]
    subject.rounds._unbroken_since = LONG_AGO  # as if it had listened ever since
    subject.rounds.round()
    assert [state for state, _ in subject.attempts] == ["lost"]


def test_what_is_left_of_older_attempts_is_ended_and_nothing_else(subject: Subject) -> None:
    """Leading or not. Of what it does not know a control plane keeps its hands off: it is of another catalog."""
    subject.leads.now = None
    subject.ledger.attempt_ended(subject.execution, 1, "lost", LOST)
    ticket = subject.ledger.new_attempt(subject.execution)
    lost, current = subject.name, DriverName(subject.execution, ticket.attempt)
    stranger = DriverName("0" * 32, 1)
    for number, name in enumerate((lost, current, stranger)):
        subject.processes.running[name] = ProcessReference(identity=f"{number}@1", machine=HERE)

    subject.remains.clear()

    assert set(subject.processes.running) == {current, stranger}
    assert subject.processes.killed == ["//here/second-boot/0@1"]


def test_a_driver_that_has_ended_by_itself_gets_time_to_do_so(subject: Subject) -> None:
    subject.driver.begin_attempt()
    subject.driver.finish(None)
    subject.processes.running[subject.name] = ProcessReference(identity="1@1", machine=HERE)
    work = subject.settings.work_directory / subject.execution
    work.mkdir(parents=True)
    subject.remains.clear()
    assert subject.name in subject.processes.running and work.exists()

    with subject.database.writing() as session:
        session.execute(update(Attempt).values(ended_at=LONG_AGO))
    subject.remains.clear()
    subject.remains.clear()

    assert subject.processes.running == {} and not work.exists()


def test_a_driver_that_is_launched_while_what_is_left_is_looked_for_is_spared(subject: Subject) -> None:
    """By another control plane on the same machine."""
    subject.ledger.attempt_ended(subject.execution, 1, "lost", LOST)

    def launch() -> None:
        attempt = subject.ledger.new_attempt(subject.execution).attempt
        name = DriverName(subject.execution, attempt)
        subject.processes.running[name] = ProcessReference(identity="9@1", machine=HERE)
        (subject.settings.work_directory / subject.execution).mkdir(parents=True)
        subject.processes.looking = lambda: None

    subject.processes.looking = launch
    subject.remains.clear()
    assert subject.processes.killed == []
    assert (subject.settings.work_directory / subject.execution).exists()


def test_people_see_what_a_driver_that_has_not_begun_waits_for(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1"))
    subject.processes.cause = "No node takes the pod."
    subject.rounds.round()
    assert subject.ledger.supervised().executions[0].detail == "No node takes the pod."
    subject.heard()
    subject.processes.cause = "Something else."
    subject.rounds.round()
    assert subject.ledger.supervised().executions[0].detail is None  # from here on the driver says it itself


def test_why_a_driver_ended_is_what_its_launcher_knows(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1"), runs=False)
    subject.processes.cause = "The image 'x' cannot be pulled."
    subject.rounds.round()
    failure = subject.ledger.supervised().executions[0].attempts[0].failure
    assert failure is not None
    assert (failure.type, failure.message.partition(" Its log")[0]) == ("driver-lost", subject.processes.cause)


def test_nothing_is_launched_or_given_up_while_nobody_answers_for_drivers(subject: Subject) -> None:
    subject.launched(ProcessReference(identity="1@1"), runs=False)
    subject.processes.away = True
    subject.rounds.round()
    assert [state for state, _ in subject.attempts] == ["running"]
    subject.ledger.attempt_ended(subject.execution, 1, "lost", LOST)
    for _ in range(3):
        subject.rounds.round()
    assert [state for state, _ in subject.attempts] == ["lost"]  # no attempt is used up meanwhile
    subject.processes.away = False

    def launched() -> bool:
        subject.rounds.round()
        return [state for state, _ in subject.attempts] == ["lost", "running"]

    eventually(launched)


def test_what_is_left_of_a_driver_that_has_ended_goes_at_once(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod stays until somebody removes it."""
    subject.driver.begin_attempt()
    subject.driver.finish(None)
    subject.processes.running[subject.name] = ProcessReference(identity="1@1", machine=HERE)
    monkeypatch.setattr(subject.processes, "alive", lambda _: False)
    subject.remains.clear()
    assert subject.processes.running == {}
