"""A small kubelet: a node of a test cluster, which runs the pods that the scheduler assigns to it as processes.

It supports the node features that Epochal's drivers, executors and control planes use.
``tests/kit/README.md`` lists the unsupported features, which its tests therefore cannot cover.
"""

from __future__ import annotations

import logging
import platform
import tempfile
import threading
import urllib.error
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from types import TracebackType
from typing import Any, Self

from epochal.testing.servers.process import LOOPBACK
from tests.kit.kubernetes.cluster import KubernetesCluster
from tests.kit.kubernetes.container_logs import ContainerLogs
from tests.kit.kubernetes.containers import Image, check_containers
from tests.kit.kubernetes.environment import Place
from tests.kit.kubernetes.names import host_lines
from tests.kit.kubernetes.network import PodNetwork
from tests.kit.kubernetes.pods import Pod
from tests.kit.kubernetes.storage import ClaimedFolders

log = logging.getLogger("epochal.testing.kubernetes")

CAPACITY = {"cpu": "16", "memory": "16Gi", "pods": "110", "ephemeral-storage": "64Gi"}
_WATCH_SECONDS = 60
_PAUSE_SECONDS = 0.2
_HEARTBEAT_SECONDS = 1.0
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_API_ERRORS = (urllib.error.URLError, OSError)


class Kubelet:
    """A node named ``node``. ``images``: the available images by name; other images cannot be pulled.

    ``number`` identifies the node in its cluster: pods of node n have addresses 127.0.n.x, or the addresses that
    ``network`` assigns. Raises ``ServerUnavailable`` if processes cannot be placed in namespaces of their own.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        images: Mapping[str, Image],
        node: str = "node-1",
        number: int = 1,
        capacity: Mapping[str, str] = CAPACITY,
        network: PodNetwork | None = None,
    ) -> None:
        check_containers()
        self.node = node
        self.images = dict(images)
        self.pods: dict[str, Pod] = {}
        """The pods of this node, by uid."""
        self._cluster = cluster
        self._number = number
        self._capacity = capacity
        self._network = network
        self._addresses = 0
        self._folder = Path(tempfile.mkdtemp(prefix=f"epochal-{node}-"))
        self._logs = ContainerLogs(self._folder, self.pod)
        self._claims = ClaimedFolders(cluster, self._folder / "claims")
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._repeatedly, args=[task, pause], name=f"{node}-{task.__name__}", daemon=True)
            for task, pause in (
                (self._watch, _PAUSE_SECONDS),
                (self._heartbeat, _HEARTBEAT_SECONDS),
                (self._write_hosts, _PAUSE_SECONDS),
                (self._claims.bind, _PAUSE_SECONDS),
            )
        ]

    def __enter__(self) -> Self:
        self._register()
        self._logs.open()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        for pod in list(self.pods.values()):
            pod.close()
        self._logs.close()
        for thread in self._threads[1:]:
            thread.join(timeout=10)
        rmtree(self._folder, ignore_errors=True)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the latest pod of this name on this node."""
        found = [pod for pod in list(self.pods.values()) if (pod.namespace, pod.name) == (namespace, name)]
        return found[-1] if found else None

    def lose(self, end: bool) -> None:
        """Lose the node: it reports nothing more. ``end``: its processes end; otherwise they continue unobserved."""
        self._closing.set()
        for pod in list(self.pods.values()):
            pod.lose(end)

    def set_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Set a pod's status as another kubelet would; it lasts until this kubelet reports a change."""
        self._cluster.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})

    def _register(self) -> None:
        labels = {
            "kubernetes.io/hostname": self.node,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": _architecture(),
        }
        self._cluster.create("/api/v1/nodes", {"metadata": {"name": self.node, "labels": labels}})
        addresses = [{"type": "InternalIP", "address": LOOPBACK}, {"type": "Hostname", "address": self.node}]
        status = {
            "capacity": dict(self._capacity),
            "allocatable": dict(self._capacity),
            "addresses": addresses,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.port}},
            "conditions": [_ready()],
        }
        self._cluster.patch(f"/api/v1/nodes/{self.node}/status", {"status": status})
        self._cluster.create(_LEASES, {"metadata": {"name": self.node}, "spec": self._lease()})

    def _lease(self) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self.node, "leaseDurationSeconds": 40, "renewTime": now}

    def _heartbeat(self) -> None:
        self._cluster.patch(f"{_LEASES}/{self.node}", {"spec": self._lease()})
        self._cluster.patch(f"/api/v1/nodes/{self.node}/status", {"status": {"conditions": [_ready()]}})

    def _watch(self) -> None:
        query = {"fieldSelector": f"spec.nodeName={self.node}"}
        for kind, manifest in self._cluster.watch("/api/v1/pods", query, _WATCH_SECONDS):
            if self._closing.is_set():
                return
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                self._handle(kind, manifest)

    def _handle(self, kind: str, manifest: Mapping[str, Any]) -> None:
        metadata = manifest["metadata"]
        pod = self.pods.get(metadata["uid"])
        if kind == "DELETED" or metadata.get("deletionTimestamp"):
            if pod is not None:
                pod.delete(0 if kind == "DELETED" else float(metadata.get("deletionGracePeriodSeconds") or 0))
            elif kind != "DELETED":
                self._forget(metadata)
        elif pod is None and (manifest.get("status") or {}).get("phase") == "Pending":
            self._start_pod(manifest)

    def _start_pod(self, manifest: Mapping[str, Any]) -> None:
        metadata = manifest["metadata"]
        with self._lock:
            self._addresses += 1
            address = self._address(self._addresses)
        place = Place(self.node, LOOPBACK, address)
        folder = self._folder / metadata["uid"]
        pod = Pod(self._cluster, manifest, place, self.images, folder, self._folder / "claims", self._ended)
        self.pods[pod.uid] = pod
        pod.start()

    def _address(self, number: int) -> str:
        if self._network is not None:
            return self._network.address(self._number, number)
        return f"127.0.{self._number}.{number % 250 + 1}"

    def _ended(self, uid: str) -> None:
        self.pods.pop(uid, None)

    def _forget(self, metadata: Mapping[str, Any]) -> None:
        """Remove a pod that was deleted before it reached this node."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        self._cluster.delete(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", options)

    def _write_hosts(self) -> None:
        """Write the current names of services and pods, in place of a cluster's DNS."""
        pods = self._cluster.get("/api/v1/pods")["items"]
        services = self._cluster.get("/api/v1/services")["items"]
        api = LOOPBACK if self._network is None else self._network.api
        for pod in list(self.pods.values()):
            lines = host_lines(pod.manifest, pod.place.address, services, pods, api)
            with suppress(OSError):
                if pod.hosts.read_text() != lines:
                    pod.hosts.write_text(lines)  # the same file: containers have it mounted

    def _repeatedly(self, task: Any, pause: float) -> None:
        while not self._closing.is_set():
            try:
                task()
            except _API_ERRORS as error:
                log.info("node %s: %s", self.node, error)
            except Exception:
                log.exception("node %s", self.node)
            self._closing.wait(pause)


def _ready() -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
