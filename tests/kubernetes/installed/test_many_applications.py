"""Twenty concurrent applications in five projects, two of them with Spark, each in its project's namespace."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from epochal.client import Client
from tests.kubernetes.installed.applications import Application, Counted, Scripted, trace
from tests.kubernetes.installed.installation import APPLICATIONS, Installation

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

NAMESPACES = {"default": APPLICATIONS, **{name: f"epochal-{name}" for name in ("fraud", "growth", "pricing", "search")}}
"""Namespaces by project."""
SCRIPTED, COUNTED = 18, 2
SUBMITTERS = 4
"""Number of concurrent submissions. A control plane limits the number of concurrent builds."""


def test_twenty_applications_run_in_five_namespaces(installed: Installation) -> None:
    """The leading control plane is killed meanwhile; no driver is replaced, and no epoch is lost."""
    trace(installed)
    _make_projects(installed)
    with ExitStack() as stack:
        clients = [stack.enter_context(installed.client(project)) for project in NAMESPACES]
        client_of = [clients[number % len(clients)] for number in range(SCRIPTED + COUNTED)]
        scripted = [Scripted(installed, client_of[number], f"many-{number}") for number in range(SCRIPTED)]
        counted = [Counted(installed, client, f"with-spark-{at}") for at, client in enumerate(client_of[SCRIPTED:])]
        _submit(scripted, counted)
        applications: list[Application] = [*scripted, *counted]
        for each in applications:
            each.wait_for_epoch(2)
        drivers = {each.driver["metadata"]["uid"]: each.driver["metadata"]["namespace"] for each in applications}
        expected = [NAMESPACES[each.client.project] for each in applications]
        assert list(drivers.values()) == expected

        installed.kill(installed.leader())
        for each in applications:
            each.wait_for_more_epochs()
        installed.wait_until_ready()

        assert {each.driver["metadata"]["uid"] for each in applications} == drivers.keys()
        assert [problem for heavy in counted for problem in heavy.problems()] == []
        _stop(applications)
        installed.eventually(lambda: not drivers.keys() & _uids(installed))
    assert [problem for light in scripted for problem in light.problems()] == []


def _make_projects(installed: Installation) -> None:
    projects = [
        {"project": project, "namespace": namespace, "createNamespace": True, "podSecurity": "restricted"}
        for project, namespace in NAMESPACES.items()
    ]
    installed.upgrade(kubernetes={"projects": projects})
    installed.wait_until_ready()
    with installed.client() as client:
        existing = {project.name for project in client.projects.list()}
        for project, namespace in NAMESPACES.items():
            installed.provide(namespace)
            if project not in existing:
                client.projects.create(project)


def _submit(scripted: Sequence[Scripted], counted: Sequence[Counted]) -> None:
    with ThreadPoolExecutor(SUBMITTERS) as submitters:
        submitted = [submitters.submit(light.submit, 2.0) for light in scripted]
        submitted += [submitters.submit(heavy.submit) for heavy in counted]
    for done in submitted:
        done.result()


def _stop(applications: Sequence[Application]) -> None:
    stops: list[tuple[Client, str]] = []
    for each in applications:
        stops.append((each.client, each.client.applications.stop(each.name).id))
    for client, operation in stops:
        client.operations.wait(operation, timeout_seconds=240)


def _uids(installed: Installation) -> set[str]:
    pods = [pod for namespace in NAMESPACES.values() for pod in installed.pods(namespace).values()]
    return {pod["metadata"]["uid"] for pod in pods}
