"""Every kind of pod is killed, and a node is lost: the application goes on, no row is lost, and none comes twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.installed.applications import Counted
from tests.kubernetes.installed.installation import NAMESPACE, Installation

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def nothing_stays(installation_of_the_run: Installation) -> Iterator[None]:
    """After these tests."""
    yield
    with installation_of_the_run.client() as client:
        application = Counted(installation_of_the_run, client, "counted")
        if application.is_there:
            application.end()


@pytest.fixture
def counted(installed: Installation) -> Iterator[Counted]:
    """One application for all of these tests; each leaves it running, and is judged by all that it has done."""
    with installed.client() as client:
        application = Counted(installed, client, "counted")
        if not application.is_there:
            application.submit()
        application.reaches(2)
        yield application
        application.goes_on()
        assert list(application.problems()) == []


def test_the_control_plane_that_leads_is_killed(installed: Installation, counted: Counted) -> None:
    """Another one leads; no driver is started for it."""
    leader, attempt = installed.leader(), counted.attempt
    installed.kill(leader)
    counted.goes_on()
    installed.eventually(lambda: installed.leader() not in (None, leader))
    installed.wait_until_ready()
    assert counted.attempt == attempt


def test_a_control_plane_that_does_not_lead_is_killed(installed: Installation, counted: Counted) -> None:
    leader, attempt = installed.leader(), counted.attempt
    assert leader is not None
    name = leader["metadata"]["name"]
    other = next(pod for other, pod in installed.component("control").items() if other != name)
    installed.kill(other)
    counted.goes_on()
    installed.wait_until_ready()
    assert counted.attempt == attempt
    assert _restarts(installed, other["metadata"]["name"]) >= 1


def test_a_query_node_is_killed(installed: Installation, counted: Counted) -> None:
    """The other one answers; this one comes again, with replicas that it makes anew."""
    name, pod = next(iter(installed.component("query").items()))
    installed.kill(pod)
    assert list(counted.problems()) == []
    installed.eventually(lambda: _restarts(installed, name) >= 1)
    installed.wait_until_ready()


def test_a_driver_is_killed(installed: Installation, counted: Counted) -> None:
    """Another attempt goes on in a pod of its own, with an executor of its own; nothing of the first is left."""
    driver, attempt = counted.driver, counted.attempt
    executors = counted.executors
    installed.kill(driver)
    installed.eventually(lambda: counted.attempt > attempt)
    counted.goes_on()
    assert counted.attempt == attempt + 1
    gone = {driver["metadata"]["name"], *executors}
    installed.eventually(lambda: not gone & installed.pods("epochal-applications").keys())


def test_an_executor_is_killed(installed: Installation, counted: Counted) -> None:
    """Spark starts another one; the driver goes on."""
    attempt = counted.attempt
    ((name, executor),) = counted.executors.items()
    installed.kill(executor)
    counted.goes_on()
    installed.eventually(lambda: counted.executors.keys() not in (set(), {name}))
    assert counted.attempt == attempt


def test_a_node_is_lost_with_the_driver_on_it(installed: Installation, counted: Counted) -> None:
    """Nobody waits for its pods; what the release had there comes up elsewhere."""
    driver, attempt = counted.driver, counted.attempt
    node = driver["spec"]["nodeName"]
    installed.lose_node(node)
    installed.eventually(lambda: counted.attempt > attempt)
    counted.goes_on()
    assert counted.driver["spec"]["nodeName"] != node
    # Its pods are called ready until the cluster has noticed, and are swept away some time later.
    nodes = installed.nodes.keys() - {node}
    installed.eventually(lambda: {pod["spec"].get("nodeName") for pod in installed.pods(NAMESPACE).values()} <= nodes)
    installed.wait_until_ready()


def _restarts(installed: Installation, name: str) -> int:
    status = installed.pods(NAMESPACE)[name]["status"]
    return int(status["containerStatuses"][0]["restartCount"])
