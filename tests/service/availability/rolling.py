"""One control plane after the other is replaced by this version, while all that it serves goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.kit.waiting import eventually
from tests.service.availability.builds import Build
from tests.service.availability.clients import Balancer, ClientLoad
from tests.service.availability.history import History, Plan, Report
from tests.service.availability.installation import Installation, Node, driver_processes, installation
from tests.service.availability.outside import Outside

PATIENCE_SECONDS = 60.0
KNOWN_SECONDS = 6.0
"""Within so long all drivers know a control plane that is there again: each heartbeat, every two seconds, is answered
with those that a control plane has seen alive."""


class RollingUpgrade(History):
    """Three control planes of the version before; at the end, of this one. In between each of the two versions leads,
    and is led; supervises drivers of the other, and answers them."""

    def __init__(self, plan: Plan, made: Installation, balancer: Balancer, before: Build, after: Build) -> None:
        super().__init__(plan, made)
        self.before, self.after = before, after
        self.load = self.clients = ClientLoad(balancer.url, made.token, self.names, plan.seed)

    def _let_happen(self) -> None:
        first, second, third = self.made.nodes
        self._are(self.before, self.before, self.before)

        # Newer tables below control planes that do not know them.
        environment = {**first.environment, "EPOCHAL_DATABASE_URL": self.made.catalog}
        self.after.command("migrate", environment=environment)
        self._all_go_on()

        # Uploaded and submitted at a new control plane, started by one of before.
        self._replace(first, self.after)
        self._are(self.after, self.before, self.before)
        assert self.leader() in (second, third)
        with self._answered_only_by(first):
            self._submit_at(first, "submitted-at-a-new-one", self.before)

        # Second thoughts: one of before starts on the newer catalog, and does not lead any more.
        self._replace(second, self.after)
        self._replace(third, self.before)
        self._are(self.after, self.after, self.before)
        assert self.leader() in (first, second)
        with self._answered_only_by(third):
            self._submit_at(third, "submitted-at-an-old-one", self.after)
        for version in (self.before, self.after):
            for node in self.made.nodes:
                self._command_line(version, node)

        self._replace(third, self.after)
        self._are(self.after, self.after, self.after)
        self._all_go_on()

    def _replace(self, node: Node, version: Build) -> None:
        """As a platform does: asked to end, and started again when it has."""
        node.stop()
        node.program = version
        node.start()
        self.made.wait_until_ready([node])
        self._all_go_on()

    def _are(self, *versions: Build) -> None:
        """So say the processes themselves."""
        expected = {
            node.process.pid: version.version
            for node, version in zip(self.made.nodes, versions, strict=True)
            if node.process is not None
        }
        alive = [node for node in self.clients.client.nodes.list() if node.state == "alive"]
        assert {node.process: node.version for node in alive} == expected

    def _submit_at(self, node: Node, name: str, version: Build) -> None:
        """``version``: that of the control plane which leads, and so of the driver."""
        with closing(Outside([node.url], self.made.token, self.plan.seed)) as there:
            self._submit(name, there)
        eventually(lambda: self._epochs(name) >= 2, PATIENCE_SECONDS)
        process = self._journal(name).of("started")[-1]["process"]
        assert str(version.root) in driver_processes(self.made.folder)[process]
        self.names.append(name)

    @contextmanager
    def _answered_only_by(self, node: Node) -> Iterator[None]:
        """All drivers, also those that begin meanwhile."""
        others = [other for other in self.made.nodes if other is not node]
        time.sleep(KNOWN_SECONDS)
        for other in others:
            other.internal.cut()
        yield
        self._all_go_on()
        for other in others:
            other.internal.heal()

    def _all_go_on(self) -> None:
        before = {name: self._epochs(name) for name in self.names}
        eventually(lambda: all(self._epochs(name) >= before[name] + 3 for name in self.names), PATIENCE_SECONDS)

    def _command_line(self, version: Build, node: Node) -> None:
        environment = {**node.environment, "EPOCHAL_URL": node.url, "EPOCHAL_TOKEN": self.made.token}
        assert self.names[0] in version.command("show", self.names[0], environment=environment)


def run(plan: Plan, folder: Path, before: Build, after: Build) -> Report:
    with installation(folder, nodes=3, program=before) as made, closing(Balancer(made.nodes)) as balancer:
        return RollingUpgrade(plan, made, balancer, before, after).live()
