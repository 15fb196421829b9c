"""A rolling upgrade of control planes under load."""

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
from tests.service.availability.rest_load import RetryingClient

PATIENCE_SECONDS = 60.0
DISCOVERY_SECONDS = 6.0
"""Time until all drivers have learned of a restarted control plane from the answers to their heartbeats."""


class RollingUpgrade(History):
    """Replaces three control planes of the earlier build by the later one.

    Meanwhile each build leads while the other one follows, and supervises and answers drivers of the other."""

    def __init__(self, plan: Plan, made: Installation, balancer: Balancer, before: Build, after: Build) -> None:
        super().__init__(plan, made)
        self.before, self.after = before, after
        self.load = self.clients = ClientLoad(balancer.url, made.token, self.names, plan.seed)

    def _inject_faults(self) -> None:
        first, second, third = self.made.nodes
        self._check_versions(self.before, self.before, self.before)

        # The earlier build runs on newer tables.
        environment = {**first.environment, "EPOCHAL_DATABASE_URL": self.made.catalog}
        self.after.command("migrate", environment=environment)
        self._check_progress()

        # Submitted at the later build, started by a leader of the earlier build.
        self._replace(first, self.after)
        self._check_versions(self.after, self.before, self.before)
        assert self.leader() in (second, third)
        with self._only_reachable(first):
            self._submit_at(first, "submitted-at-the-later", self.before)

        # A downgrade: the earlier build starts on the newer catalog, and no longer leads.
        self._replace(second, self.after)
        self._replace(third, self.before)
        self._check_versions(self.after, self.after, self.before)
        assert self.leader() in (first, second)
        with self._only_reachable(third):
            self._submit_at(third, "submitted-at-the-earlier", self.after)
        for version in (self.before, self.after):
            for node in self.made.nodes:
                self._command_line(version, node)

        self._replace(third, self.after)
        self._check_versions(self.after, self.after, self.after)
        self._check_progress()

    def _replace(self, node: Node, version: Build) -> None:
        """Stop a control plane in order and start it with another build."""
        node.stop()
        node.program = version
        node.start()
        self.made.wait_until_ready([node])
        self._check_progress()

    def _check_versions(self, *versions: Build) -> None:
        """Check which build each process reports."""
        expected = {
            node.process.pid: version.version
            for node, version in zip(self.made.nodes, versions, strict=True)
            if node.process is not None
        }
        alive = [node for node in self.clients.client.nodes.list() if node.state == "alive"]
        assert {node.process: node.version for node in alive} == expected

    def _submit_at(self, node: Node, name: str, version: Build) -> None:
        """Submit an application; its driver must be of ``version``, the build of the leader."""
        with closing(RetryingClient([node.url], self.made.token, self.plan.seed)) as client:
            self._submit(name, client)
        eventually(lambda: self._epochs(name) >= 2, PATIENCE_SECONDS)
        process = self._journal(name).of("started")[-1]["process"]
        assert str(version.root) in driver_processes(self.made.folder)[process]
        self.names.append(name)

    @contextmanager
    def _only_reachable(self, node: Node) -> Iterator[None]:
        """Within the block, drivers reach this control plane only."""
        others = [other for other in self.made.nodes if other is not node]
        time.sleep(DISCOVERY_SECONDS)
        for other in others:
            other.internal.cut()
        yield
        self._check_progress()
        for other in others:
            other.internal.heal()

    def _check_progress(self) -> None:
        before = {name: self._epochs(name) for name in self.names}
        eventually(lambda: all(self._epochs(name) >= before[name] + 3 for name in self.names), PATIENCE_SECONDS)

    def _command_line(self, version: Build, node: Node) -> None:
        environment = {**node.environment, "EPOCHAL_URL": node.url, "EPOCHAL_TOKEN": self.made.token}
        assert self.names[0] in version.command("show", self.names[0], environment=environment)


def run(plan: Plan, folder: Path, before: Build, after: Build) -> Report:
    with installation(folder, nodes=3, program=before) as made, closing(Balancer(made.nodes)) as balancer:
        return RollingUpgrade(plan, made, balancer, before, after).execute()
