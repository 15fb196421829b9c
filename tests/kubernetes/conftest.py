"""One cluster with one node for all Kubernetes tests; each test has its own namespace."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.kit.kubernetes import KubernetesCluster, kubernetes
from tests.kit.kubernetes.containers import Image
from tests.kit.kubernetes.kubelet import Kubelet
from tests.kit.servers import or_skipped
from tests.kit.waiting import eventually

NODE_TIMEOUT_SECONDS = 6
IMAGES = {
    "shell:1": Image(entrypoint=["sh", "-c"]),
    "python:1": Image(entrypoint=[sys.executable, "-c"]),
    "epochal:1": Image(environment={"PYTHONUNBUFFERED": "1"}),
}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[KubernetesCluster]:
    """A cluster. Tests are skipped where its programs are missing, with the command that builds them."""
    yield from or_skipped(kubernetes(NODE_TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def kubelet(cluster: KubernetesCluster) -> Iterator[Kubelet]:
    yield from or_skipped(_kubelet(cluster))


def _kubelet(cluster: KubernetesCluster) -> AbstractContextManager[Kubelet]:
    return Kubelet(cluster, IMAGES)


@pytest.fixture
def namespace(cluster: KubernetesCluster) -> str:
    """The name of an empty namespace with its default service account."""
    name = f"test-{next(_numbers)}"
    cluster.make_namespace(name)
    return name


@pytest.fixture
def pods(cluster: KubernetesCluster, kubelet: Kubelet, namespace: str) -> Iterator[Pods]:
    pods = Pods(cluster, namespace)
    yield pods
    pods.end()


class Pods:
    """Pods of one namespace."""

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def run(self, name: str, *, image: str = "shell:1", command: str = "", **spec: Any) -> None:
        """Create a pod with one container ``main``. ``container`` in ``spec`` contains its settings."""
        container = {"name": "main", "image": image, "args": [command], **spec.pop("container", {})}
        body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **spec}
        self.cluster.create(self.path, {"metadata": {"name": name, "labels": {"app": name}}, "spec": body})

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.get(f"{self.path}/{name}")["status"]
        return status

    def wait(self, name: str, condition: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        """Wait until the status meets the condition, and return it."""
        eventually(lambda: condition(self.status(name)), seconds)
        return self.status(name)

    def ended(self, name: str) -> dict[str, Any]:
        """Wait for the end of the container ``main``, and return its terminated state."""
        status = self.wait(name, lambda status: status["phase"] in ("Succeeded", "Failed"))
        terminated: dict[str, Any] = status["containerStatuses"][0]["state"]["terminated"]
        return terminated

    def log(self, name: str) -> str:
        """Return the log from the API; empty before the container has started."""
        try:
            return self.cluster.text(f"{self.path}/{name}/log")
        except HTTPError as error:
            if error.code != HTTPStatus.BAD_REQUEST:
                raise
            return ""

    def names(self) -> set[str]:
        return {item["metadata"]["name"] for item in self.cluster.get(self.path)["items"]}

    def end(self) -> None:
        for name in self.names():
            self.cluster.delete(f"{self.path}/{name}", {"gracePeriodSeconds": 0})
