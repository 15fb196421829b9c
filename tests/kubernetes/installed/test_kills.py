"""Every kind of pod is killed, and a node is lost: the application continues without missing or duplicate rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.installed.applications import Counted
from tests.kubernetes.installed.installation import NAMESPACE, Installation

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def application_is_removed(installation_of_the_run: Installation) -> Iterator[None]:
    """Remove the application after these tests."""
    yield
    with installation_of_the_run.client() as client:
        application = Counted(installation_of_the_run, client, "counted")
        if application.exists:
            application.end()


@pytest.fixture
def counted(installed: Installation) -> Iterator[Counted]:
    """One application for all of these tests. After each test all of its output so far is checked."""
    with installed.client() as client:
        application = Counted(installed, client, "counted")
        if not application.exists:
            application.submit()
        application.wait_for_epoch(2)
        yield application
        application.wait_for_more_epochs()
        assert list(application.problems()) == []


def test_killed_leader_is_replaced(installed: Installation, counted: Counted) -> None:
    """Another control plane leads; the driver continues."""
    leader, attempt = installed.leader(), counted.attempt
    installed.kill(leader)
    counted.wait_for_more_epochs()
    installed.eventually(lambda: installed.leader() not in (None, leader))
    installed.wait_until_ready()
    assert counted.attempt == attempt


def test_killed_follower_restarts(installed: Installation, counted: Counted) -> None:
    leader, attempt = installed.leader(), counted.attempt
    assert leader is not None
    name = leader["metadata"]["name"]
    other = next(pod for other, pod in installed.component("control").items() if other != name)
    installed.kill(other)
    counted.wait_for_more_epochs()
    installed.wait_until_ready()
    assert counted.attempt == attempt
    assert _restarts(installed, other["metadata"]["name"]) >= 1


def test_killed_query_node_restarts(installed: Installation, counted: Counted) -> None:
    """The other query node answers; the killed one restarts and rebuilds its replicas."""
    name, pod = next(iter(installed.component("query").items()))
    installed.kill(pod)
    assert list(counted.problems()) == []
    installed.eventually(lambda: _restarts(installed, name) >= 1)
    installed.wait_until_ready()


def test_killed_driver_is_replaced(installed: Installation, counted: Counted) -> None:
    """The next attempt runs in a new pod with a new executor; the pods of the first are deleted."""
    driver, attempt = counted.driver, counted.attempt
    executors = counted.executors
    installed.kill(driver)
    installed.eventually(lambda: counted.attempt > attempt)
    counted.wait_for_more_epochs()
    assert counted.attempt == attempt + 1
    deleted = {driver["metadata"]["name"], *executors}
    installed.eventually(lambda: not deleted & installed.pods("epochal-applications").keys())


def test_killed_executor_is_replaced(installed: Installation, counted: Counted) -> None:
    """Spark starts another executor; the driver continues."""
    attempt = counted.attempt
    ((name, executor),) = counted.executors.items()
    installed.kill(executor)
    counted.wait_for_more_epochs()
    installed.eventually(lambda: counted.executors.keys() not in (set(), {name}))
    assert counted.attempt == attempt


def test_driver_of_a_lost_node_is_replaced(installed: Installation, counted: Counted) -> None:
    """The driver is replaced without waiting for the lost pod; the release's pods start on other nodes."""
    driver, attempt = counted.driver, counted.attempt
    node = driver["spec"]["nodeName"]
    installed.lose_node(node)
    installed.eventually(lambda: counted.attempt > attempt)
    counted.wait_for_more_epochs()
    assert counted.driver["spec"]["nodeName"] != node
    # The cluster reports the lost pods as ready for a while, and deletes them later.
    nodes = installed.nodes.keys() - {node}
    installed.eventually(lambda: {pod["spec"].get("nodeName") for pod in installed.pods(NAMESPACE).values()} <= nodes)
    installed.wait_until_ready()


def _restarts(installed: Installation, name: str) -> int:
    status = installed.pods(NAMESPACE)[name]["status"]
    return int(status["containerStatuses"][0]["restartCount"])
