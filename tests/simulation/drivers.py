"""Simulated machines, processes and drivers, and the launcher of a simulated control plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epochal.contracts.catalog import DriverStatus
from epochal.driver.orders import DriverOrders
from epochal.errors import EpochalError, Fenced, NotFound
from epochal.service.catalog.sql_catalog import SqlCatalog
from epochal.service.domain.executions import DriverName
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.control_planes import Node, World

HEARTBEAT_SECONDS = 2.0


@dataclass
class Host:
    """A machine. ``processes``: its running processes, by identity. Process ids are few and reused."""

    name: str
    boot: int = 0
    started_at: float = -10_000.0
    processes: dict[str, Driver] = field(default_factory=dict)

    @property
    def machine(self) -> Machine:
        return Machine(self.name, f"boot-{self.boot}")


@dataclass(eq=False)
class Driver:
    """A driver process. ``healthy_since``: the end of its last fault; ``None`` if it hangs or has died."""

    name: DriverName
    host: Host
    identity: str
    healthy_since: float | None
    has_begun: bool = False
    heartbeat_at: float = 0.0
    next_node: int = 0

    @property
    def runs(self) -> bool:
        return self.host.processes.get(self.identity) is self


class NodeLauncher(Launcher):
    """Launches processes on the node's machine. Finds them by process id and start time, and by name."""

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
            self._world.log(f"{self._node.name} launches {str(name)[28:]} as {driver.identity}")
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
            self._world.log(f"{self._node.name} kills {str(driver.name)[28:]}")
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
    """Call the control planes alternately. A crashed one refuses immediately; a paused one costs the timeout."""
    if not driver.runs:
        return
    next_call = begin if not driver.has_begun else beat
    seconds = HEARTBEAT_SECONDS
    if driver.healthy_since is not None:
        driver.next_node = (driver.next_node + 1) % len(world.nodes)
        node = world.nodes[driver.next_node]
        if not node.alive:
            seconds = 0.2
        elif world.now >= node.frozen_until and world.now >= world.catalog_unavailable_until:
            with node.serving():
                try:
                    call(SqlCatalog(node.database, driver.name.execution, driver.name.attempt))
                    next_call, driver.has_begun, driver.heartbeat_at = beat, True, world.now
                except (Fenced, NotFound):
                    world.log(f"{str(driver.name)[28:]} ends because it is fenced")
                    end(driver)
                except EpochalError as error:
                    world.violation(f"{driver.name} received {error!r}")
    world.scheduler.after(seconds, lambda: next_call(world, driver))
