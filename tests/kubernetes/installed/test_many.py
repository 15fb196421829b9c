"""Twenty applications of five projects at once, two of them with Spark: each in its project's namespace."""

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
"""By project."""
SCRIPTED, COUNTED = 18, 2
AT_ONCE = 4
"""People who submit: what they submit is built, for which a control plane takes so many at a time."""


def test_twenty_applications_in_five_namespaces_at_once(installed: Installation) -> None:
    """The control plane that leads is killed meanwhile: no driver is replaced for it, and no epoch is lost."""
    trace(installed)
    _make_projects(installed)
    with ExitStack() as stack:
        clients = [stack.enter_context(installed.client(project)) for project in NAMESPACES]
        of = [clients[number % len(clients)] for number in range(SCRIPTED + COUNTED)]
        scripted = [Scripted(installed, of[number], f"many-{number}") for number in range(SCRIPTED)]
        counted = [Counted(installed, client, f"with-spark-{at}") for at, client in enumerate(of[SCRIPTED:])]
        _submit(scripted, counted)
        all_of_them: list[Application] = [*scripted, *counted]
        for each in all_of_them:
            each.reaches(2)
        drivers = {each.driver["metadata"]["uid"]: each.driver["metadata"]["namespace"] for each in all_of_them}
        expected = [NAMESPACES[each.client.project] for each in all_of_them]
        assert list(drivers.values()) == expected

        installed.kill(installed.leader())
        for each in all_of_them:
            each.goes_on()
        installed.wait_until_ready()

        assert {each.driver["metadata"]["uid"] for each in all_of_them} == drivers.keys()
        assert [problem for heavy in counted for problem in heavy.problems()] == []
        _stop(all_of_them)
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
        there = {project.name for project in client.projects.list()}
        for project, namespace in NAMESPACES.items():
            installed.claim(namespace)
            if project not in there:
                client.projects.create(project)


def _submit(scripted: Sequence[Scripted], counted: Sequence[Counted]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as people:
        submitted = [people.submit(light.submit, 2.0) for light in scripted]
        submitted += [people.submit(heavy.submit) for heavy in counted]
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
