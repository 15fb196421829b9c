"""Several control planes on one catalog, simulated: the real leases, leadership, supervision and catalog, on SQLite,
under a clock and a scheduler that a seed decides.

Simulated are what surrounds them: the database's clock (SQLite's own function, replaced), the nodes' clocks (off by
minutes, and of slightly different speed), machines, processes, the network between nodes and catalog, and drivers that
do nothing but send heartbeats, through the real catalog. Nodes crash, are stopped for seconds at any step, and lose the
catalog, or the answer to a commit; machines are started again; drivers die and hang.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import event

from epochal.contracts.catalog import DriverStatus, Failure
from epochal.driver.orders import DriverOrders
from epochal.errors import CatalogUnavailable, EpochalError, Fenced, NotFound, OutcomeUnknown
from epochal.service.catalog.database import Database, Session
from epochal.service.catalog.leases import Leases
from epochal.service.catalog.ledger import ExecutionLedger
from epochal.service.catalog.sql import SqlCatalog
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.catalog.writes import Write
from epochal.service.domain.leases import Holder
from epochal.service.domain.ports import DriverName
from epochal.service.domain.settings import Settings
from epochal.service.domain.supervision.settings import SupervisionSettings
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.leadership import LeaseLeadership
from epochal.service.runtime.machine import Machine
from epochal.service.runtime.supervision.remains import Remains
from epochal.service.runtime.supervision.rounds import Rounds
from tests.catalogs import new_sqlite_catalog
from tests.simulation.scheduling import Actor, Scheduler

BASE = datetime(2100, 1, 1, tzinfo=UTC)
"""The database's clock when a simulation begins."""
TROUBLE_SECONDS = 40.0
"""Faults begin before this time."""
CALM_SECONDS = 45.0
"""So long after the last fault is over everything runs again: lease, look, heartbeat timeout, start, restart."""
HEARTBEAT_SECONDS = 2.0
EXECUTIONS = 2
SUPERVISION = SupervisionSettings(round_seconds=1.0, sweep_seconds=4.0)
RESTART = {"max_restarts": 1000, "window_seconds": 600.0, "backoff_seconds": 0.5, "backoff_limit_seconds": 2.0}


@dataclass
class Host:
    """A machine. ``processes``: those that run, by identity. Process ids are few, and used again."""

    name: str
    boot: int = 0
    started_at: float = -10_000.0
    processes: dict[str, Driver] = field(default_factory=dict)

    @property
    def machine(self) -> Machine:
        return Machine(self.name, f"boot-{self.boot}")


@dataclass(eq=False)
class Driver:
    """``healthy_since``: since when nothing has happened to it; ``None``: it hangs, or is gone."""

    name: DriverName
    host: Host
    identity: str
    healthy_since: float | None
    begun: bool = False
    heard_at: float = 0.0
    next_node: int = 0

    @property
    def runs(self) -> bool:
        return self.host.processes.get(self.identity) is self


class World:
    def __init__(self, seed: int, folder: Path, nodes: int = 3) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.scheduler = Scheduler()
        self.violations: list[str] = []
        self.story: list[str] = []
        self.catalog_away_until = 0.0
        self.calm_at = 0.0
        url = _catalog(folder)
        self.database = Database(url)
        self._simulate(self.database)
        hosts = [Host(f"host-{number}") for number in range(nodes)]
        # Two control planes may share a machine.
        self.nodes = [Node(self, number, self.random.choice(hosts), url) for number in range(nodes)]
        self.hosts = list({id(node.host): node.host for node in self.nodes}.values())

    @property
    def now(self) -> float:
        return self.scheduler.now

    @property
    def drivers(self) -> list[Driver]:
        return [driver for host in self.hosts for driver in host.processes.values()]

    def say(self, what: str) -> None:
        self.story.append(f"{self.now:8.3f} {what}")

    def violation(self, what: str) -> None:
        self.say(f"VIOLATION: {what}")
        self.violations.append(what)

    def database_time(self) -> datetime:
        return BASE + timedelta(seconds=self.now)

    def run(self) -> None:
        for node in self.nodes:
            node.start()
        _plan_faults(self)
        self.scheduler.run(self.calm_at + CALM_SECONDS, self._check)
        self._check_settled()

    def close(self) -> None:
        for node in self.nodes:
            node.crash()
            node.database.close()
        self.database.close()

    def given_up(self, name: DriverName) -> None:
        """An attempt was ended by supervision."""
        for driver in self.drivers:
            if driver.name == name and driver.begun and self._healthy(driver):
                self.violation(f"the healthy driver {name} is given up")

    def killed(self, driver: Driver) -> None:
        if driver.name in self.running() and self._healthy(driver):
            self.violation(f"the healthy driver {driver.name} is killed")

    def running(self) -> set[DriverName]:
        """The attempts that run, by the catalog."""
        with self.database.reading() as session:
            found = session.connection().exec_driver_sql("SELECT execution, number FROM attempts WHERE state='running'")
            return {DriverName(execution, number) for execution, number in found}

    def _healthy(self, driver: Driver) -> bool:
        """For so long that whatever was decided when it was not is over."""
        return driver.healthy_since is not None and self.now - driver.healthy_since > 2 * SUPERVISION.lease_seconds

    def _check(self) -> None:
        leading = [node.name for node in self.nodes if node.leads]
        if len(leading) > 1:
            self.violation(f"{' and '.join(leading)} lead at the same time")

    def _check_settled(self) -> None:
        running = self.running()
        if len(running) != EXECUTIONS:
            self.violation(f"{len(running)} attempts run")
        for name in running:
            drivers = [driver for driver in self.drivers if driver.name == name]
            if len(drivers) != 1:
                self.violation(f"of the driver {name} there are {len(drivers)} processes")
            elif drivers[0].healthy_since is None or self.now - drivers[0].heard_at > 3 * HEARTBEAT_SECONDS:
                self.violation(f"the driver {name} was not replaced, though it is not heard")
        attended = [node.host for node in self.nodes if node.alive]
        for driver in self.drivers:
            if driver.name not in running and any(driver.host is host for host in attended):
                self.violation(f"{driver.name}, whose attempt is over, still runs")

    def _simulate(self, database: Database) -> None:
        simulate(database, self.database_time)


def simulate(database: Database, clock: Callable[[], datetime]) -> None:
    """The clock of this database is ``clock``; what is written may be lost with the machine."""

    def strftime(_format: str, moment: str) -> str:
        assert moment == "now"
        return clock().strftime("%Y-%m-%d %H:%M:%S.%f")

    def connected(connection: Any, _record: Any) -> None:
        connection.create_function("strftime", 2, strftime)
        connection.execute("PRAGMA synchronous=OFF")

    event.listen(database.engine, "connect", connected)


class NodeDatabase(Database):
    """The catalog as one node reaches it: each transaction takes time before it begins and after it ends, in which the
    node may be stopped or lose the catalog; what was committed then may stay unknown."""

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
    """A control plane: a process with a thread that keeps the lease and one that supervises."""

    actor: ClassVar[Actor | None] = None
    """Whose thread runs."""

    def __init__(self, world: World, number: int, host: Host, url: str) -> None:
        self.world = world
        self.number = number
        self.host = host
        self.name = f"node {number}"
        self.alive = False
        self.frozen_until = 0.0
        self.slow_until = 0.0
        self.life = 0
        self.stop_at_step: tuple[int, float] | None = None
        self.clock_off = timedelta(seconds=world.random.uniform(-600, 600))
        self.clock_rate = world.random.uniform(0.98, 1.02)
        self.database = NodeDatabase(url, self)
        simulate(self.database, world.database_time)
        self._actors: list[Actor] = []
        self._leadership: LeaseLeadership | None = None

    @property
    def leads(self) -> bool:
        return self.alive and self._leadership is not None and self._leadership.leading() is not None

    def wall(self) -> datetime:
        """What a person would read off its clock."""
        return self.world.database_time() + self.clock_off

    def steady(self) -> float:
        return 1000.0 + self.world.now * self.clock_rate

    def start(self) -> None:
        if self.alive:
            return
        self.alive, self.life = True, self.life + 1
        self.world.say(f"{self.name} starts on {self.host.machine}")
        life = f"{self.number}.{self.life}"
        holder = Holder(life, self.host.name, self.host.machine.boot, life)
        leases = Leases(self.database, holder, self._is_gone)
        leadership = self._leadership = LeaseLeadership(leases, clock=self.steady)
        settings = Settings(data=self.world.folder / f"data-{self.number}", store="memory://store")
        ledger = NodeLedger(self, settings)
        launcher = NodeLauncher(self)
        uptime = lambda: self.world.now - self.host.started_at  # noqa: E731
        rounds = Rounds(settings, ledger, launcher, leadership, SUPERVISION, self.host.machine, uptime)
        remains = Remains(settings, ledger, launcher, SUPERVISION)
        self._actors = [
            self._actor(lambda: self._keep_lease(leadership)),
            self._actor(lambda: self._supervise(rounds)),
            self._actor(lambda: self._sweep(remains)),
        ]

    def crash(self) -> None:
        if self.alive:
            self.alive = False
            self.world.say(f"{self.name} is gone")
            for actor in self._actors:
                actor.kill()

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)
        self.world.say(f"{self.name} is stopped for {seconds:.1f} s")

    def request(self) -> None:
        self._pass_time()
        if self.world.now < self.world.catalog_away_until:
            raise CatalogUnavailable("The catalog is away.")

    def answer(self) -> bool:
        """Whether it is lost."""
        self._pass_time()
        return self.world.now < self.world.catalog_away_until

    def step(self) -> None:
        """Between two effects: time may pass."""
        self._pass_time()

    def _pass_time(self) -> None:
        actor = Node.actor
        if actor is None or actor not in self._actors:
            return  # a driver's call is served at once
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
        actor.sleep(seconds)
        Node.actor = actor

    def _actor(self, body: Callable[[], None]) -> Actor:
        def run() -> None:
            Node.actor = made
            self._sleep(made, self.world.random.uniform(0, 1))
            body()

        made = Actor(self.world.scheduler, lambda: self.frozen_until, run)
        return made

    def _pause(self, seconds: float) -> None:
        assert Node.actor is not None
        self._sleep(Node.actor, max(seconds, 0.01))

    def _keep_lease(self, leadership: LeaseLeadership) -> None:
        while True:
            self._pause(leadership.step())

    def _supervise(self, rounds: Rounds) -> None:
        while True:
            self._pause(0.0 if rounds.round() else SUPERVISION.round_seconds)

    def _sweep(self, remains: Remains) -> None:
        while True:
            with suppress(EpochalError):
                remains.clear()
            self._pause(SUPERVISION.sweep_seconds)

    def _is_gone(self, holder: Holder) -> bool:
        """What a process of the same machine can find out."""
        if Machine(holder.host, holder.boot) != self.host.machine:
            return False
        number, life = map(int, holder.process.split("."))
        node = self.world.nodes[number]
        return not node.alive or node.life != life


class NodeLedger(ExecutionLedger):
    """The real one, which tells the world what supervision has done."""

    def __init__(self, node: Node, settings: Settings) -> None:
        super().__init__(settings, node.database)
        self._world = node.world

    def attempt_ended(self, execution: str, attempt: int, state: Any, failure: Failure | None) -> None:
        self._say(f"{execution[-4:]}-{attempt} is {state}: {failure and failure.message}")
        super().attempt_ended(execution, attempt, state, failure)
        self._world.given_up(DriverName(execution, attempt))

    def attempt_not_heard(self, execution: str, attempt: int, heard_at: datetime | None, failure: Failure) -> None:
        self._say(f"{execution[-4:]}-{attempt} is not heard since {heard_at}: {failure.message}")
        super().attempt_not_heard(execution, attempt, heard_at, failure)
        self._world.given_up(DriverName(execution, attempt))

    def execution_ended(self, execution: str, state: Any, failure: Failure | None) -> None:
        self._world.violation(f"the execution {execution} is ended")

    def _say(self, what: str) -> None:
        self._world.say(what)


class NodeLauncher(Launcher):
    """Processes of the node's machine: as the local launcher, found by process id and start, and by name."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.world
        self._processes = node.host.processes
        self._machine = node.host.machine

    def launch(self, orders: DriverOrders) -> ProcessReference:
        self._node.step()
        name = DriverName(orders.execution, orders.attempt)
        reference = self.drivers().get(name)
        if reference is None:
            used = {identity.partition("@")[0] for identity in self._processes}
            pid = next(str(number) for number in range(1, 100) if str(number) not in used)
            driver = Driver(name, self._node.host, f"{pid}@{self._world.now:.3f}", self._world.now)
            self._processes[driver.identity] = driver
            self._world.say(f"{self._node.name} launches {str(name)[28:]} as {driver.identity}")
            self._world.scheduler.after(self._world.random.uniform(0.5, 4.0), lambda: begin(self._world, driver))
            reference = ProcessReference(identity=driver.identity, machine=self._machine)
        self._node.step()
        return reference

    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        found = {
            driver.name: ProcessReference(identity=identity, machine=self._machine)
            for identity, driver in self._processes.items()
        }
        self._node.step()
        return found

    def alive(self, reference: ProcessReference) -> bool:
        self._node.step()
        return reference.identity in self._processes

    def exit_code(self, reference: ProcessReference) -> int | None:
        return None

    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        self._node.step()
        if reference.machine != self._machine:
            self._world.violation(f"{self._node.name} kills {reference}, which is on another machine")
        driver = self._processes.get(reference.identity)
        if driver is not None:
            self._world.say(f"{self._node.name} kills {str(driver.name)[28:]}")
            self._world.killed(driver)
            end(driver)


def end(driver: Driver) -> None:
    driver.host.processes.pop(driver.identity, None)
    driver.healthy_since = None


def begin(world: World, driver: Driver) -> None:
    _call(world, driver, lambda catalog: catalog.begin_attempt())


def beat(world: World, driver: Driver) -> None:
    _call(world, driver, lambda catalog: catalog.heartbeat(DriverStatus(phase="running", epoch=None)))


def _call(world: World, driver: Driver, call: Callable[[SqlCatalog], object]) -> None:
    """Over all control planes in turn: one that is gone refuses at once, one that is stopped costs the time-out."""
    if not driver.runs:
        return
    again = begin if not driver.begun else beat
    seconds = HEARTBEAT_SECONDS
    if driver.healthy_since is not None:
        driver.next_node = (driver.next_node + 1) % len(world.nodes)
        node = world.nodes[driver.next_node]
        if not node.alive:
            seconds = 0.2
        elif world.now >= node.frozen_until and world.now >= world.catalog_away_until:
            Node.actor = None
            node.database, served_by = node.database, node.wall
            with served(served_by):
                try:
                    call(SqlCatalog(node.database, driver.name.execution, driver.name.attempt))
                    again, driver.begun, driver.heard_at = beat, True, world.now
                except (Fenced, NotFound):
                    world.say(f"{str(driver.name)[28:]} ends: it is fenced")
                    end(driver)
                except EpochalError as error:
                    world.violation(f"{driver.name} is answered {error!r}")
    world.scheduler.after(seconds, lambda: again(world, driver))


_walls: list[Callable[[], datetime]] = []


@contextmanager
def served(wall: Callable[[], datetime]) -> Iterator[None]:
    """By a node with this clock."""
    _walls.append(wall)
    try:
        yield
    finally:
        _walls.pop()


class NodeClock(datetime):
    """What code under test takes for the time of the day: the clock of the node that runs."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        if _walls:
            return _walls[-1]()
        for node in _nodes_that_run():
            return node.wall()
        return datetime.now(UTC)


def _nodes_that_run() -> Iterator[Node]:
    actor = Node.actor
    if actor is not None:
        for world in _worlds:
            yield from (node for node in world.nodes if actor in node._actors)


_worlds: list[World] = []


@contextmanager
def simulated(seed: int, folder: Path) -> Iterator[World]:
    world = World(seed, folder)
    _worlds.append(world)
    try:
        yield world
    finally:
        _worlds.remove(world)
        world.close()
        Node.actor = None


# Faults.


def _plan_faults(world: World) -> None:
    faults = (
        crash,
        stop,
        stop_in_the_middle,
        lose_the_catalog,
        slow_down,
        kill_a_driver,
        hang_a_driver,
        restart_a_host,
    )
    world.calm_at = 12.0
    for _ in range(world.random.randint(1, 4)):
        fault = world.random.choice(faults)
        time = world.random.uniform(8.0, TROUBLE_SECONDS)
        seconds = world.random.choice((world.random.uniform(0.5, 4.0), world.random.uniform(4.0, 20.0)))
        world.scheduler.at(time, lambda fault=fault, seconds=seconds: fault(world, seconds))  # type: ignore[misc]
        world.calm_at = max(world.calm_at, time + seconds)


def crash(world: World, seconds: float) -> None:
    node = world.random.choice(world.nodes)
    node.crash()
    world.scheduler.after(seconds, node.start)


def stop(world: World, seconds: float) -> None:
    """One, or all of them."""
    nodes = world.random.choice(([world.random.choice(world.nodes)], world.nodes))
    for node in nodes:
        node.freeze(seconds)


def stop_in_the_middle(world: World, seconds: float) -> None:
    for node in world.nodes:
        if node.leads:
            node.stop_at_step = (world.random.randint(0, 12), seconds)


def lose_the_catalog(world: World, seconds: float) -> None:
    world.say(f"the catalog is away for {seconds:.1f} s")
    world.catalog_away_until = max(world.catalog_away_until, world.now + seconds)


def slow_down(world: World, seconds: float) -> None:
    """Requests and answers between a node and the catalog take long."""
    node = world.random.choice(world.nodes)
    world.say(f"{node.name} is slow for {seconds:.1f} s")
    node.slow_until = world.now + seconds


def kill_a_driver(world: World, seconds: float) -> None:
    if world.drivers:
        driver = world.random.choice(world.drivers)
        world.say(f"{str(driver.name)[28:]} dies")
        end(driver)


def hang_a_driver(world: World, seconds: float) -> None:
    if world.drivers:
        driver = world.random.choice(world.drivers)
        world.say(f"{str(driver.name)[28:]} hangs for {seconds:.1f} s")
        driver.healthy_since = None
        world.scheduler.after(seconds, lambda: _recover(world, driver))


def _recover(world: World, driver: Driver) -> None:
    if driver.runs:
        driver.healthy_since = world.now


def restart_a_host(world: World, seconds: float) -> None:
    host = world.random.choice(world.hosts)
    world.say(f"{host.name} is started again")
    for node in world.nodes:
        if node.host is host:
            node.crash()
            world.scheduler.after(seconds, node.start)
    for driver in list(host.processes.values()):
        end(driver)
    host.boot += 1
    host.started_at = world.now


# The catalog: applications whose executions are to run.


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
        settings = Settings(data=Path(folder))
        ledger = ExecutionLedger(settings, ledger_database)
        for number in range(EXECUTIONS):
            begun = standalone_catalog(url, f"application-{number}", "a" * 64, configuration={"restart": RESTART})
            ledger.attempt_ended(begun.execution, 1, "lost", Failure(type="driver-lost", message="before"))
            begun._database.close()
        with ledger_database.writing() as session:
            session.connection().exec_driver_sql("UPDATE attempts SET ended_at = started_at")
        ledger_database.close()
        return file.read_bytes()
