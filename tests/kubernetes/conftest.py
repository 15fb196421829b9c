"""One cluster with one node for all tests of Kubernetes; each test has a namespace of its own."""

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

NODE_GONE_SECONDS = 6
IMAGES = {
    "shell:1": Image(entrypoint=["sh", "-c"]),
    "python:1": Image(entrypoint=[sys.executable, "-c"]),
    "epochal:1": Image(environment={"PYTHONUNBUFFERED": "1"}),
}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[KubernetesCluster]:
    """The test is skipped, with the command that builds what is missing, where the cluster cannot be had."""
    yield from or_skipped(kubernetes(NODE_GONE_SECONDS))


@pytest.fixture(scope="session")
def kubelet(cluster: KubernetesCluster) -> Iterator[Kubelet]:
    yield from or_skipped(_kubelet(cluster))


def _kubelet(cluster: KubernetesCluster) -> AbstractContextManager[Kubelet]:
    return Kubelet(cluster, IMAGES)


@pytest.fixture
def namespace(cluster: KubernetesCluster) -> str:
    """Empty, with its default service account."""
    name = f"test-{next(_numbers)}"
    cluster.make_namespace(name)
    return name


@pytest.fixture
def pods(cluster: KubernetesCluster, kubelet: Kubelet, namespace: str) -> Iterator[Pods]:
    made = Pods(cluster, namespace)
    yield made
    made.end()


class Pods:
    """Pods of one namespace."""

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def run(self, name: str, *, image: str = "shell:1", command: str = "", **spec: Any) -> None:
        """One container, ``main``, whose settings are among ``spec``'s ``container``."""
        container = {"name": "main", "image": image, "args": [command], **spec.pop("container", {})}
        body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **spec}
        self.cluster.create(self.path, {"metadata": {"name": name, "labels": {"app": name}}, "spec": body})

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.get(f"{self.path}/{name}")["status"]
        return status

    def wait(self, name: str, reached: Callable[[dict[str, Any]], bool], seconds: float = 60) -> dict[str, Any]:
        """Its status, once it is as asked for."""
        eventually(lambda: reached(self.status(name)), seconds)
        return self.status(name)

    def ended(self, name: str) -> dict[str, Any]:
        """How its container ``main`` has ended."""
        status = self.wait(name, lambda status: status["phase"] in ("Succeeded", "Failed"))
        end: dict[str, Any] = status["containerStatuses"][0]["state"]["terminated"]
        return end

    def log(self, name: str) -> str:
        """As the API has it; nothing before the container has begun."""
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
