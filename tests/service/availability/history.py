"""A history: applications under load, while processes are killed, networks cut and disks filled."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.kit.waiting import eventually
from tests.service.availability.driver import TOTALS
from tests.service.availability.installation import Installation, Node, driver_processes, installation
from tests.service.availability.judging import TRACE, Catalog, Journal
from tests.service.availability.listening import Listener
from tests.service.availability.rest_load import PATIENCE_SECONDS, BackgroundLoad, RestLoad, RetryingClient

LEASE_SECONDS = 6.0


@dataclass
class Plan:
    """``faults``: the number of faults, drawn from ``kinds`` by the seed; each kind occurs once if there are enough."""

    seed: int
    nodes: int = 3
    applications: int = 10
    faults: int = 8
    kinds: Sequence[str] = ()
    epoch_seconds: float = 0.5
    settle_seconds: float = 3.0


@dataclass
class Report:
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    epochs: int = 0
    lookups: int = 0
    operations: int = 0
    events: int = 0
    takeover_seconds: list[float] = field(default_factory=list)
    """Time from each kill of the leader until another control plane led."""


class History:
    def __init__(self, plan: Plan, made: Installation) -> None:
        self.plan, self.made = plan, made
        self.chance = random.Random(plan.seed)
        self.report = Report()
        self.names = [f"application-{number}" for number in range(plan.applications)]
        self.killed_drivers: Counter[str] = Counter()
        self.client = RetryingClient([node.url for node in made.nodes], made.token, plan.seed)
        self.load: BackgroundLoad = RestLoad(self.client, self.names, plan.seed)
        urls = [node.url for node in made.nodes]
        self.listener = Listener(urls, made.token, self.names[0], plan.seed)
        self.kinds: dict[str, Callable[[], None]] = {
            "killed": lambda: self._kill(self._node()),
            "leader killed": lambda: self._kill(self.leader() or self._node()),
            "paused": self._pause,
            "internal killed": lambda: self._node().kill_internal(),
            "database away": self._database_away,
            "database cut": lambda: self._proxy("database", "cut"),
            "database held": lambda: self._proxy("database", "hold"),
            "database slow": lambda: self._proxy("database", "delay"),
            "internal cut": lambda: self._proxy("internal", "cut"),
            "internal held": lambda: self._proxy("internal", "hold"),
            "internal slow": lambda: self._proxy("internal", "delay"),
            "disk full": self._disk_full,
            "driver killed": self._driver_killed,
            "machine lost": self._machine_lost,
        }

    def execute(self) -> Report:
        self._begin()
        self._inject_faults()
        self._heal()
        self._settle()
        self._judge()
        self.client.close()
        return self.report

    def _inject_faults(self) -> None:
        kinds = list(self.plan.kinds or self.kinds)
        drawn = self.chance.sample(kinds, len(kinds)) if self.plan.faults >= len(kinds) else []
        drawn += self.chance.choices(kinds, k=self.plan.faults - len(drawn))
        for kind in drawn:
            self.report.faults[kind] += 1
            try:
                self.kinds[kind]()
            except AssertionError as error:
                self.report.problems.append(f"{kind}: {error}")
            time.sleep(self.chance.uniform(0, self.plan.settle_seconds))

    # Before and after the faults.

    def _begin(self) -> None:
        with self.made.connect() as connection:
            connection.execute(TRACE)
        for name in self.names:
            self._submit(name, self.client)
        eventually(lambda: all(self._epochs(name) >= 2 for name in self.names), PATIENCE_SECONDS)
        self.listener.start()
        self.load.start()

    def _submit(self, name: str, client: RetryingClient) -> None:
        folder = self._folder(name)
        (folder / "sink").mkdir(parents=True)
        content = {"sinks": {"out": "files:{folder}"}, "tables": [TOTALS.model_dump(mode="json")]}
        sha256 = client.call(
            "POST", "/v1/artifacts", params={"filename": "flights.py"}, content=f"# {json.dumps(content)}\n".encode()
        ).json()["sha256"]
        parameters = {"folder": str(folder), "pause": self.plan.epoch_seconds}
        client.post("/v1/applications", name=name, artifact=sha256, parameters=parameters)

    def _heal(self) -> None:
        for node in self.made.nodes:
            node.database.heal()
            node.internal.heal()
            node.signal(signal.SIGCONT)
            if not node.runs:
                node.start()
        self.made.wait_until_ready(self.made.nodes)

    def _settle(self) -> None:
        """Check that applications continue and operations end; then stop all."""
        self.load.stop()
        before = {name: self._epochs(name) for name in self.names}
        self._wait("an application does not continue", lambda: all(self._epochs(n) > before[n] + 1 for n in self.names))
        self._wait("an operation does not end", lambda: not self._running_operations())
        for name in self.names:
            self.client.post(f"/v1/applications/{name}/stop")
        self._wait("an application does not stop", lambda: not self._running_operations())
        listener = self.listener
        last = max(self._journal(listener.application).committed)
        self._wait("an event is missing", lambda: last in listener.committed)
        listener.stop()

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        try:
            eventually(holds, PATIENCE_SECONDS)
        except AssertionError:
            self.report.problems.append(f"{what}: {self._running_operations()}")

    def _judge(self) -> None:
        self.report.problems += self.load.problems
        self.report.lookups, self.report.operations = self.load.lookups, len(self.load.operations)
        with self.made.connect() as connection:
            catalog = Catalog(connection)
            for name in self.names:
                found = catalog.application(name, self._folder(name))
                journal = self._journal(name)
                self.report.epochs += len(journal.committed)
                if name == self.listener.application:
                    self.report.events = len(self.listener.events)
                    problems = self.listener.problems(found.committed)
                    self.report.problems += [f"{name}: {problem}" for problem in problems]
                problems = found.problems(journal, self.killed_drivers[name])
                self.report.problems += [f"{name}: {problem}" for problem in problems]
            # An operation fails when no reachable control plane has space for it.
            tolerated = "was tried at" if self.report.faults["disk full"] else None
            operations = catalog.operations()
            self.report.problems += operations.problems(self.load.operations, self.load.savepoints, tolerated)

    # Faults.

    def _node(self) -> Node:
        return self.chance.choice(self.made.nodes)

    def _kill(self, node: Node) -> None:
        """Kill a control plane and restart it; if it led, only after another one leads."""
        led = self.leader() is node
        at = time.monotonic()
        node.kill()
        if led and len(self.made.nodes) > 1:
            eventually(lambda: self.leader() not in (None, node), 60)
            self.report.takeover_seconds.append(time.monotonic() - at)
        time.sleep(self.chance.uniform(0, 3))
        node.start()
        self.made.wait_until_ready([node])

    def _pause(self) -> None:
        """Pause a control plane for longer than its lease."""
        node = self.leader() or self._node()
        node.signal(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS + self.chance.uniform(0.5, 3))
        node.signal(signal.SIGCONT)

    def _database_away(self) -> None:
        self.made.postgresql.stop_immediately()
        time.sleep(self.chance.uniform(0, 4))
        self.made.postgresql.start_again()

    def _proxy(self, which: str, how: str) -> None:
        node = self._node()
        proxy = node.database if which == "database" else node.internal
        if how == "delay":
            proxy.delay(self.chance.uniform(0.05, 0.5))
        else:
            getattr(proxy, how)()
        time.sleep(self.chance.uniform(1, LEASE_SECONDS + 3))
        proxy.heal()

    def _disk_full(self) -> None:
        if not self.made.own_disks:
            return
        node = self._node()
        node.fill_disk()
        time.sleep(self.chance.uniform(1, 5))
        node.empty_disk()

    def _driver_killed(self) -> None:
        self._kill_drivers(self.chance.sample(self.names, 1), self.made.folder)

    def _machine_lost(self) -> None:
        """Kill a control plane and its drivers, which any control plane restarts."""
        node = self._node()
        node.kill()
        self._kill_drivers(self.names, node.home)
        node.start()
        self.made.wait_until_ready([node])

    def _kill_drivers(self, names: Sequence[str], below: Path) -> None:
        """Kill the drivers of ``names`` that work below ``below``, and wait until each is replaced."""
        running, before = driver_processes(below), dict[str, int]()
        for name in names:
            started = self._journal(name).of("started")
            if started[-1]["process"] in running:
                before[name] = started[-1]["attempt"]
                self.killed_drivers[name] += 1
                os.kill(started[-1]["process"], signal.SIGKILL)
        for name, attempt in before.items():
            self._wait(f"the driver of {name} is not replaced", partial(self._is_replaced, name, attempt))

    def _is_replaced(self, name: str, attempt: int) -> bool:
        return any(line["attempt"] > attempt for line in self._journal(name).of("begun"))

    # Current state.

    def leader(self) -> Node | None:
        """The node that holds the leader lease, or ``None``."""
        with suppress(Exception), self.made.connect() as connection:
            row = connection.execute(
                "SELECT process FROM leases WHERE name = 'leader' AND expires_at > clock_timestamp()"
            ).fetchone()
            if row is not None:
                for node in self.made.nodes:
                    if node.process is not None and str(row[0]).partition("@")[0] == str(node.process.pid):
                        return node
        return None

    def _folder(self, name: str) -> Path:
        return self.made.folder / "applications" / name

    def _journal(self, name: str) -> Journal:
        return Journal.read(self._folder(name))

    def _epochs(self, name: str) -> int:
        return len(self._journal(name).committed)

    def _running_operations(self) -> list[str]:
        with self.made.connect() as connection:
            return Catalog(connection).running()


def run(plan: Plan, folder: Path) -> Report:
    """Run a history on its own servers."""
    with installation(folder, plan.nodes) as made:
        return History(plan, made).execute()
