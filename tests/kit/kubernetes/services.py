"""A load balancer in front of a service of the cluster: one address for all of its pods."""

from __future__ import annotations

import socket
import threading
import urllib.error
from contextlib import suppress

from epochal.testing.servers.process import LOOPBACK
from epochal.testing.servers.proxy import TcpProxy
from tests.kit.kubernetes.cluster import KubernetesCluster

_CHECK_SECONDS = 0.25


class ServiceProxy(TcpProxy):
    """Forwards each connection to the next pod of the service that the cluster reports as ready."""

    def __init__(self, cluster: KubernetesCluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._slices = (
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
            f"?labelSelector=kubernetes.io/service-name%3D{name}"
        )
        self._name = name
        self._ready: list[tuple[str, int]] = []
        self._turn = 0
        self._closed = threading.Event()
        super().__init__(0)
        threading.Thread(target=self._check, name=f"service-{name}", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def ready(self) -> list[tuple[str, int]]:
        """Addresses and ports of the ready pods."""
        return list(self._ready)

    def close(self) -> None:
        self._closed.set()
        super().close()

    def _check(self) -> None:
        while not self._closed.wait(_CHECK_SECONDS):
            with suppress(urllib.error.URLError, OSError):
                self._ready = sorted(self._endpoints())

    def _endpoints(self) -> set[tuple[str, int]]:
        return {
            (address, int(piece["ports"][0]["port"]))
            for piece in self._cluster.get(self._slices)["items"]
            for endpoint in piece.get("endpoints") or ()
            if endpoint["conditions"].get("ready")
            for address in endpoint["addresses"]
        }

    def _connect(self) -> socket.socket:
        ready = self._ready
        for _ in ready:
            self._turn += 1
            with suppress(OSError):
                return socket.create_connection(ready[self._turn % len(ready)], timeout=5)
        raise ConnectionRefusedError(f"no pod of {self._name} is ready")
