"""Simulation of several control planes on one catalog, under a clock and a scheduler that a seed determines.

Leases, leadership, supervision and the catalog (on SQLite) are real. Simulated are the database's clock (SQLite's
function is replaced), the nodes' clocks (wrong by minutes, at slightly different speeds), machines, processes, the
network between nodes and catalog, and drivers that only send heartbeats through the real catalog. Nodes crash, are
paused for seconds at any step, and lose the catalog or the answer to a commit. Machines restart; drivers die and hang.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import event

from epochal.contracts.catalog import Failure
from epochal.errors import CatalogUnavailable, EpochalError, OutcomeUnknown
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.leases import Leases
from epochal.service.catalog.ledger import ExecutionLedger
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.catalog.writes import Write
from epochal.service.domain.executions import DriverName
from epochal.service.domain.leases import Holder
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision import SupervisionSettings
from epochal.service.runtime.leadership import LeaseLeadership
from epochal.service.runtime.machine import Machine
from epochal.service.runtime.supervision.reconciler import Reconciler
from epochal.service.runtime.supervision.supervisor import LocalCleanup
from tests.kit.catalogs import new_sqlite_catalog
from tests.simulation.drivers import HEARTBEAT_SECONDS, Driver, Host, NodeLauncher
from tests.simulation.faults import plan_faults
from tests.simulation.scheduling import Actor, Scheduler

BASE = datetime(2100, 1, 1, tzinfo=UTC)
"""The time of the database's clock at the start of a simulation."""
RECOVERY_SECONDS = 40.0
"""Time after the last fault within which everything runs again: lease, check, heartbeat timeout, start, restart."""
EXECUTIONS = 2
SUPERVISION = SupervisionSettings(start_seconds=15.0, round_seconds=1.0, sweep_seconds=4.0)
RESTART = {"max_restarts": 1000, "window_seconds": 600.0, "backoff_seconds": 0.5, "backoff_limit_seconds": 2.0}


class World:
    def __init__(self, seed: int, folder: Path, nodes: int = 3) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.scheduler = Scheduler()
        self.violations: list[str] = []
        self.log_lines: list[str] = []
        self.catalog_unavailable_until = 0.0
        self.last_fault_ends_at = 0.0
        url = _catalog(folder)
        self.database = Database(url)
        self._simulate(self.database)
        hosts = [Host(f"host-{number}") for number in range(nodes)]
        # Two control planes can share a machine.
        self.nodes = [Node(self, number, self.random.choice(hosts), url) for number in range(nodes)]
        self.hosts = list({id(node.host): node.host for node in self.nodes}.values())

    @property
    def now(self) -> float:
        return self.scheduler.now

    @property
    def drivers(self) -> list[Driver]:
        return [driver for host in self.hosts for driver in host.processes.values()]

    def log(self, text: str) -> None:
        self.log_lines.append(f"{self.now:8.3f} {text}")

    def violation(self, text: str) -> None:
        self.log(f"VIOLATION: {text}")
        self.violations.append(text)

    def database_time(self) -> datetime:
        return BASE + timedelta(seconds=self.now)

    def run(self) -> None:
        for node in self.nodes:
            node.start()
        plan_faults(self)
        self.scheduler.run(self.last_fault_ends_at + RECOVERY_SECONDS, self._check)
        self._check_settled()

    def close(self) -> None:
        for node in self.nodes:
            node.crash()
            node.database.close()
        self.database.close()

    def attempt_given_up(self, name: DriverName) -> None:
        """Record that supervision has ended an attempt."""
        for driver in self.drivers:
            if driver.name == name and driver.has_begun and self._healthy(driver):
                self.violation(f"the healthy driver {name} was given up")

    def killed(self, driver: Driver) -> None:
        if driver.name in self.running() and self._healthy(driver):
            self.violation(f"the healthy driver {driver.name} was killed")

    def running(self) -> set[DriverName]:
        """The running attempts according to the catalog."""
        with self.database.reading() as session:
            found = session.connection().exec_driver_sql("SELECT execution, number FROM attempts WHERE state='running'")
            return {DriverName(execution, number) for execution, number in found}

    def _healthy(self, driver: Driver) -> bool:
        """Check that the driver has been healthy long enough for earlier decisions about it to have taken effect."""
        return driver.healthy_since is not None and self.now - driver.healthy_since > 2 * SUPERVISION.lease_seconds

    def _check(self) -> None:
        leading = [node.name for node in self.nodes if node.leads]
        if len(leading) > 1:
            self.violation(f"{' and '.join(leading)} lead at the same time")

    def _check_settled(self) -> None:
        running = self.running()
        if len(running) != EXECUTIONS:
            self.violation(f"{len(running)} attempts are running")
        for name in running:
            drivers = [driver for driver in self.drivers if driver.name == name]
            if len(drivers) != 1:
                self.violation(f"the driver {name} has {len(drivers)} processes")
            elif drivers[0].healthy_since is None or self.now - drivers[0].heartbeat_at > 3 * HEARTBEAT_SECONDS:
                self.violation(f"the driver {name} was not replaced although its heartbeats stopped")
        supervised_hosts = [node.host for node in self.nodes if node.alive]
        for driver in self.drivers:
            if driver.name not in running and any(driver.host is host for host in supervised_hosts):
                self.violation(f"{driver.name} still runs although its attempt has ended")

    def _simulate(self, database: Database) -> None:
        simulate(database, self.database_time)


def simulate(database: Database, clock: Callable[[], datetime]) -> None:
    """Make ``clock`` the clock of this database, and disable fsync."""

    def strftime(_format: str, moment: str) -> str:
        assert moment == "now"
        return clock().strftime("%Y-%m-%d %H:%M:%S.%f")

    def connected(connection: Any, _record: Any) -> None:
        connection.create_function("strftime", 2, strftime)
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(database.engine, "connect", connected)


class NodeDatabase(Database):
    """The catalog as seen by one node.

    Time passes before and after each transaction, in which the node can be paused or lose the catalog. The outcome of a
    commit can then be unknown.
    """

    def __init__(self, url: str, node: Node) -> None:
        super().__init__(url)
        self._node = node

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self._node.request()
        with super().reading() as session:
            yield session
        if self._node.answer():
            raise CatalogUnavailable("The answer was lost.")

    @contextmanager
    def writing(self, write: Write | None = None) -> Iterator[Session]:
        self._node.request()
        with super().writing(write) as session:
            yield session
        if self._node.answer():
            raise OutcomeUnknown("The answer to a commit was lost.")


class Node:
    """A control plane: a process with threads that renew the lease, supervise, and clean up."""

    current: ClassVar[Node | None] = None
    """The node whose code is running."""

    def __init__(self, world: World, number: int, host: Host, url: str) -> None:
        self.world = world
        self.number = number
        self.host = host
        self.name = f"node {number}"
        self.alive = False
        self.frozen_until = 0.0
        self.slow_until = 0.0
        self.incarnation = 0
        self.stop_at_step: tuple[int, float] | None = None
        self.clock_offset = timedelta(seconds=world.random.uniform(-600, 600))
        self.clock_rate = world.random.uniform(0.98, 1.02)
        self.database = NodeDatabase(url, self)
        simulate(self.database, world.database_time)
        self._actors: list[Actor] = []
        self._actor: Actor | None = None
        self._leadership: LeaseLeadership | None = None

    @property
    def leads(self) -> bool:
        return self.alive and self._leadership is not None and self._leadership.leading() is not None

    def wall(self) -> datetime:
        """The time on the node's wall clock."""
        return self.world.database_time() + self.clock_offset

    def monotonic(self) -> float:
        return 1000.0 + self.world.now * self.clock_rate

    def start(self) -> None:
        if self.alive:
            return
        self.alive, self.incarnation = True, self.incarnation + 1
        self.world.log(f"{self.name} starts on {self.host.machine}")
        incarnation = f"{self.number}.{self.incarnation}"
        holder = Holder(incarnation, self.host.name, self.host.machine.boot, incarnation)
        leases = Leases(self.database, holder, self._has_terminated)
        leadership = self._leadership = LeaseLeadership(leases, clock=self.monotonic)
        settings = Settings(data=self.world.folder / f"data-{self.number}", store="memory://store")
        ledger = NodeLedger(self)
        launcher = NodeLauncher(self)
        uptime = lambda: self.world.now - self.host.started_at  # noqa: E731
        reconciler = Reconciler(settings, ledger, launcher, leadership, SUPERVISION, self.host.machine, uptime)
        cleanup = LocalCleanup(settings, ledger, launcher, SUPERVISION)
        self._actors = [
            self._start_actor(lambda: self._keep_lease(leadership)),
            self._start_actor(lambda: self._supervise(reconciler)),
            self._start_actor(lambda: self._sweep(cleanup)),
        ]

    def crash(self) -> None:
        if self.alive:
            self.alive = False
            self.world.log(f"{self.name} crashes")
            for actor in self._actors:
                actor.kill()

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)
        self.world.log(f"{self.name} is paused for {seconds:.1f} s")

    def request(self) -> None:
        self._maybe_delay()
        if self.world.now < self.world.catalog_unavailable_until:
            raise CatalogUnavailable("The catalog is unavailable.")

    def answer(self) -> bool:
        """Return whether the answer is lost."""
        self._maybe_delay()
        return self.world.now < self.world.catalog_unavailable_until

    def step(self) -> None:
        """Let time pass between two effects."""
        self._maybe_delay()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve a call of a driver, which takes no time."""
        Node.current, self._actor = self, None
        yield
        Node.current = None

    def _maybe_delay(self) -> None:
        actor = self._actor
        if actor is None:
            return
        seconds = 0.0
        if self.stop_at_step is not None:
            steps, stop = self.stop_at_step
            self.stop_at_step = (steps - 1, stop) if steps > 0 else None
            if steps == 0:
                self.freeze(stop)
                seconds = 0.001
        if self.world.now < self.slow_until:
            seconds = self.world.random.uniform(0.2, 2.5)
        elif self.world.random.random() < 0.1:
            seconds = self.world.random.uniform(0.001, 0.3)
        if seconds:
            self._sleep(actor, seconds)

    def _sleep(self, actor: Actor, seconds: float) -> None:
        Node.current = None
        actor.sleep(seconds)
        Node.current, self._actor = self, actor

    def _start_actor(self, body: Callable[[], None]) -> Actor:
        def run() -> None:
            self._sleep(actor, self.world.random.uniform(0, 1))
            body()

        actor = Actor(self.world.scheduler, lambda: self.frozen_until, run)
        return actor

    def _pause(self, seconds: float) -> None:
        assert self._actor is not None
        self._sleep(self._actor, max(seconds, 0.01))

    def _keep_lease(self, leadership: LeaseLeadership) -> None:
        while True:
            self._pause(leadership.step())

    def _supervise(self, reconciler: Reconciler) -> None:
        while True:
            self._pause(reconciler.round())

    def _sweep(self, cleanup: LocalCleanup) -> None:
        while True:
            with suppress(EpochalError):
                cleanup.clear()
            self._pause(SUPERVISION.sweep_seconds)

    def _has_terminated(self, holder: Holder) -> bool:
        """Check whether a holder on this machine has terminated; a holder on another machine counts as running."""
        if Machine(holder.host, holder.boot) != self.host.machine:
            return False
        number, incarnation = map(int, holder.process.split("."))
        node = self.world.nodes[number]
        return not node.alive or node.incarnation != incarnation


class NodeLedger(ExecutionLedger):
    """The real ledger, which reports the actions of supervision to the world."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.database)
        self._world = node.world

    def attempt_ended(self, execution: str, attempt: int, state: Any, failure: Failure | None) -> None:
        self._log(f"{execution[-4:]}-{attempt} is {state}: {failure and failure.message}")
        super().attempt_ended(execution, attempt, state, failure)
        self._world.attempt_given_up(DriverName(execution, attempt))

    def attempt_lost(self, execution: str, attempt: int, heard_at: datetime | None, failure: Failure | None) -> None:
        self._log(f"{execution[-4:]}-{attempt}: no heartbeat since {heard_at}: {failure.message}")
        super().attempt_lost(execution, attempt, heard_at, failure)
        self._world.attempt_given_up(DriverName(execution, attempt))

    def execution_ended(self, execution: str, state: Any, failure: Failure | None) -> None:
        self._world.violation(f"the execution {execution} was ended")

    def _log(self, text: str) -> None:
        self._world.log(text)


class NodeClock(datetime):
    """Replaces ``datetime`` in the code under test: the wall clock of the node that runs or serves a driver."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(UTC) if Node.current is None else Node.current.wall()


@contextmanager
def simulated(seed: int, folder: Path) -> Iterator[World]:
    world = World(seed, folder)
    try:
        yield world
    finally:
        world.close()


def _catalog(folder: Path) -> str:
    file = folder / "catalog.sqlite"
    file.write_bytes(_template())
    return f"sqlite:///{file}"


@cache
def _template() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "catalog.sqlite"
        url = new_sqlite_catalog(file)
        ledger_database = Database(url)
        ledger = ExecutionLedger(ledger_database)
        for number in range(EXECUTIONS):
            catalog = standalone_catalog(url, f"application-{number}", "a" * 64, configuration={"restart": RESTART})
            ledger.attempt_ended(catalog.execution, 1, "lost", Failure(type="driver-lost", message="initial"))
            catalog._database.close()
        with ledger_database.writing() as session:
            session.connection().exec_driver_sql("UPDATE attempts SET ended_at = started_at")
        ledger_database.close()
        return file.read_bytes()
