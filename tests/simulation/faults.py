"""Faults of simulated control planes, machines and drivers, chosen by a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.drivers import Driver, end

if TYPE_CHECKING:
    from tests.simulation.control_planes import World

FIRST_SECONDS = 6.0
"""No fault begins before this time."""
LAST_SECONDS = 30.0
"""No fault begins after this time."""


def plan_faults(world: World) -> None:
    faults = (
        crash,
        pause,
        pause_at_a_step,
        lose_catalog,
        slow_down,
        kill_driver,
        hang_driver,
        restart_host,
    )
    world.last_fault_ends_at = FIRST_SECONDS
    for _ in range(world.random.randint(1, 4)):
        fault = world.random.choice(faults)
        time = world.random.uniform(FIRST_SECONDS, LAST_SECONDS)
        seconds = world.random.choice((world.random.uniform(0.5, 4.0), world.random.uniform(4.0, 20.0)))
        world.scheduler.at(time, lambda fault=fault, seconds=seconds: fault(world, seconds))  # type: ignore[misc]
        world.last_fault_ends_at = max(world.last_fault_ends_at, time + seconds)


def crash(world: World, seconds: float) -> None:
    node = world.random.choice(world.nodes)
    node.crash()
    world.scheduler.after(seconds, node.start)


def pause(world: World, seconds: float) -> None:
    """Pause one node or all nodes."""
    nodes = world.random.choice(([world.random.choice(world.nodes)], world.nodes))
    for node in nodes:
        node.freeze(seconds)


def pause_at_a_step(world: World, seconds: float) -> None:
    for node in world.nodes:
        if node.leads:
            node.stop_at_step = (world.random.randint(0, 12), seconds)


def lose_catalog(world: World, seconds: float) -> None:
    world.log(f"the catalog is unavailable for {seconds:.1f} s")
    world.catalog_unavailable_until = max(world.catalog_unavailable_until, world.now + seconds)


def slow_down(world: World, seconds: float) -> None:
    """Delay requests and answers between a node and the catalog."""
    node = world.random.choice(world.nodes)
    world.log(f"{node.name} is slow for {seconds:.1f} s")
    node.slow_until = world.now + seconds


def kill_driver(world: World, seconds: float) -> None:
    if world.drivers:
        driver = world.random.choice(world.drivers)
        world.log(f"{str(driver.name)[28:]} dies")
        end(driver)


def hang_driver(world: World, seconds: float) -> None:
    if world.drivers:
        driver = world.random.choice(world.drivers)
        world.log(f"{str(driver.name)[28:]} hangs for {seconds:.1f} s")
        driver.healthy_since = None
        world.scheduler.after(seconds, lambda: _recover(world, driver))


def _recover(world: World, driver: Driver) -> None:
    if driver.runs:
        driver.healthy_since = world.now


def restart_host(world: World, seconds: float) -> None:
    host = world.random.choice(world.hosts)
    world.log(f"{host.name} restarts")
    for node in world.nodes:
        if node.host is host:
            node.crash()
            world.scheduler.after(seconds, node.start)
    for driver in list(host.processes.values()):
        end(driver)
    host.boot += 1
    host.started_at = world.now
