"""Twenty applications at once, two of them with Spark: each in its pods, none in the way of another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from epochal.client import Client
from tests.kubernetes.installed.applications import Counted, Scripted, trace
from tests.kubernetes.installed.installation import APPLICATIONS, Installation

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

SCRIPTED, COUNTED = 18, 2
AT_ONCE = 4
"""People who submit: what they submit is built, for which a control plane takes so many at a time."""


def test_twenty_applications_at_once(installed: Installation) -> None:
    """The control plane that leads is killed meanwhile: no driver is replaced for it, and no epoch is lost."""
    trace(installed)
    with installed.client() as client:
        scripted = [Scripted(installed, client, f"many-{number}") for number in range(SCRIPTED)]
        counted = [Counted(installed, client, f"many-with-spark-{number}") for number in range(COUNTED)]
        with ThreadPoolExecutor(AT_ONCE) as people:
            submitted = [people.submit(light.submit, 2.0) for light in scripted]
            submitted += [people.submit(heavy.submit) for heavy in counted]
        for done in submitted:
            done.result()
        for each in (*scripted, *counted):
            each.reaches(2)
        drivers = {each.driver["metadata"]["uid"] for each in (*scripted, *counted)}
        assert len(drivers) == SCRIPTED + COUNTED

        leader = installed.leader()
        installed.kill(leader)
        for each in (*scripted, *counted):
            each.goes_on()
        installed.wait_until_ready()

        assert {each.driver["metadata"]["uid"] for each in (*scripted, *counted)} == drivers
        assert [problem for heavy in counted for problem in heavy.problems()] == []
        _stop(client, [each.name for each in (*scripted, *counted)])
        installed.eventually(lambda: not drivers & _uids(installed))
    assert [problem for light in scripted for problem in light.problems()] == []


def _stop(client: Client, names: list[str]) -> None:
    for operation in [client.applications.stop(name) for name in names]:
        client.operations.wait(operation, timeout_seconds=240)


def _uids(installed: Installation) -> set[str]:
    return {pod["metadata"]["uid"] for pod in installed.pods(APPLICATIONS).values()}
