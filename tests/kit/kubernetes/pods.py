"""One pod on a node: its volumes, init containers and containers, status and termination."""

from __future__ import annotations

import logging
import shutil
import threading
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kit.kubernetes.cluster import KubernetesCluster
from tests.kit.kubernetes.containers import Container, Image, Mount
from tests.kit.kubernetes.environment import Manifest, MissingObject, Place, variables_of
from tests.kit.kubernetes.probes import KINDS, Probe
from tests.kit.kubernetes.volumes import Volumes

log = logging.getLogger("epochal.testing.kubernetes")

POLL_SECONDS = 0.1
_KILLED = 137
_RESTART_SECONDS = (0.5, 1.0, 2.0, 5.0)
_API_ERRORS = (urllib.error.URLError, OSError)


@dataclass
class Running:
    """A container of the pod: its current start, and the state of the previous one."""

    manifest: Manifest
    process: Container | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)
    restarts: int = 0
    state: Mapping[str, Any] = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    previous: Mapping[str, Any] | None = None

    @property
    def is_ready(self) -> bool:
        return "running" in self.state and all(
            self.probes[kind].holds for kind in ("startupProbe", "readinessProbe") if kind in self.probes
        )


class Pod:
    """A pod, run by a thread until it ends. ``images``: the available images. ``hosts``: its hosts file."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        manifest: Manifest,
        place: Place,
        images: Mapping[str, Image],
        folder: Path,
        claims: Path,
        ended: Callable[[str], None],
    ) -> None:
        """``ended``: called with the uid when the pod has ended."""
        self.manifest = manifest
        self.place = place
        self.folder = folder
        self.hosts = folder / "hosts"
        self.volumes = Volumes(cluster, manifest, place, folder / "volumes", claims)
        spec = manifest["spec"]
        self.inits = [Running(container) for container in spec.get("initContainers") or ()]
        self.containers = [Running(container) for container in spec["containers"]]
        self._cluster = cluster
        self._images = images
        self._ended = ended
        self._started_at = _now()
        self._reported: dict[str, Any] = {}
        self._warned = ""
        self._grace: float | None = None
        self._deleted = threading.Event()
        self._lost = threading.Event()
        self._changes = 0
        folder.mkdir(parents=True)
        self.hosts.write_text("127.0.0.1 localhost\n")
        self._thread = threading.Thread(target=self._run, name=f"pod-{self.name}", daemon=True)

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])

    def log_of(self, container: str, before: bool = False) -> Path:
        """Return the log of the container's current start, or of its previous start."""
        number = next(item.restarts for item in [*self.inits, *self.containers] if item.manifest["name"] == container)
        return self.folder / f"{container}-{number - before}.log"

    def start(self) -> None:
        self._thread.start()

    def delete(self, grace_seconds: float) -> None:
        """The pod was deleted in the API. A second call can shorten the grace period."""
        self._grace = grace_seconds
        self._deleted.set()

    def lose(self, end: bool) -> None:
        """The node has lost the API. ``end``: it has also lost power."""
        self._lost.set()
        if end:
            self._kill_all()

    def kill_for_memory(self, container: str) -> None:
        """Kill the container as a node does that enforces a memory limit."""
        for running in self.containers:
            if running.manifest["name"] == container and running.process is not None:
                running.process.killed_for_memory = True
                running.process.kill()

    def close(self) -> None:
        """Kill the running containers and wait for their end."""
        self.lose(end=True)
        self._thread.join(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        try:
            mounts = self._prepared()
            if mounts is not None and self._initialised(mounts):
                self._serve(mounts)
        except Exception:
            log.exception("pod %s/%s cannot be run", self.namespace, self.name)
        if self._deleted.is_set() and not self._lost.is_set():
            self._report(self._phase_at_end())
            self._remove()
            self._ended(self.uid)

    def _prepared(self) -> Mapping[str, Path] | None:
        """Return the folders of the pod's volumes; ``None`` if the pod was deleted before they existed."""
        while not self._is_over():
            missing = [item for item in [*self.inits, *self.containers] if item.manifest["image"] not in self._images]
            for running in missing:
                message = f'this kubelet has no image "{running.manifest["image"]}"'
                running.state = {"waiting": {"reason": "ImagePullBackOff", "message": message}}
            try:
                folders = self.volumes.make()
            except (MissingObject, *_API_ERRORS) as error:
                self._warn("FailedMount", f"MountVolume.SetUp failed: {error}")
            else:
                if not missing:
                    return folders
            self._report("Pending")
            self._deleted.wait(POLL_SECONDS * 3)
        return None

    def _initialised(self, folders: Mapping[str, Path]) -> bool:
        for running in self.inits:
            while not self._is_over():
                if running.process is None and not self._start_container(running, folders):
                    continue
                assert running.process is not None
                self._report("Pending")
                while not running.process.wait(POLL_SECONDS) and not self._is_over():
                    pass
                self._note_end(running)
                if running.process.exit_code == 0:
                    break
                if self.manifest["spec"].get("restartPolicy") == "Never":
                    self._report("Failed")
                    return False
                self._restart(running)
        return not self._is_over()

    def _serve(self, folders: Mapping[str, Path]) -> None:
        for running in self.containers:
            while not self._is_over() and not self._start_container(running, folders):
                pass
        while not self._is_over():
            self._report("Running")
            for running in self.containers:
                self._check(running, folders)
            if all("terminated" in running.state for running in self.containers):
                self._report(self._phase_at_end())
                self._deleted.wait()
                return
            with suppress(*_API_ERRORS):
                self.volumes.renew()
            self._deleted.wait(POLL_SECONDS)
        self._end()

    def _check(self, running: Running, folders: Mapping[str, Path]) -> None:
        if running.process is None or "terminated" in running.state:
            return
        if running.process.exit_code is not None:
            self._note_end(running)
            policy = self.manifest["spec"].get("restartPolicy") or "Always"
            if policy == "Always" or (policy == "OnFailure" and running.process.exit_code != 0):
                self._restart(running)
                self._start_container(running, folders)
            return
        kinds = ("startupProbe",) if not running.probes["startupProbe"].holds else ("livenessProbe", "readinessProbe")
        for kind in kinds:
            running.probes[kind].run_if_due(running.process)
            if running.probes[kind].has_failed and kind != "readinessProbe":
                self._warn("Unhealthy", f"{kind} of {running.manifest['name']} failed")
                self._stop([running], self._grace_seconds())

    def _start_container(self, running: Running, folders: Mapping[str, Path]) -> bool:
        """Start the container. Returns ``False`` if it cannot be started now."""
        container = running.manifest
        try:
            variables = variables_of(self.manifest, container, self.place, self.volumes.data)
            host = self.manifest["spec"].get("hostname") or self.name
            running.process = Container(
                container,
                self._images[container["image"]],
                {**self._cluster_variables(), **variables},
                list(self._mounts(container, folders)),
                host,
                self.hosts,
                self.folder / "containers" / f"{container['name']}-{running.restarts}",
                self.log_of(container["name"]),
            )
        except (MissingObject, *_API_ERRORS) as error:
            running.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
            self._report("Pending")
            self._deleted.wait(POLL_SECONDS * 3)
            return False
        running.state = {"running": {"startedAt": _now()}}
        running.probes = {kind: Probe(kind, container, self.place.address) for kind in KINDS}
        return True

    def _mounts(self, container: Manifest, folders: Mapping[str, Path]) -> Sequence[Mount]:
        mounts = []
        for mount in container.get("volumeMounts") or ():
            source = folders[mount["name"]]
            if mount.get("subPath"):
                source = source / mount["subPath"]
                if not source.exists():
                    source.mkdir(parents=True)
            mounts.append(Mount(source, mount["mountPath"], bool(mount.get("readOnly"))))
        return sorted(mounts, key=lambda mount: mount.path.count("/"))

    def _cluster_variables(self) -> Mapping[str, str]:
        host, _, port = self._cluster.url.removeprefix("https://").partition(":")
        return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port}

    def _note_end(self, running: Running) -> None:
        assert running.process is not None
        code = running.process.exit_code
        code = _KILLED if code is None else code
        reason = "OOMKilled" if running.process.killed_for_memory else "Completed" if code == 0 else "Error"
        started_at = (running.state.get("running") or {}).get("startedAt") or _now()
        running.state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "startedAt": started_at,
                "finishedAt": _now(),
                **({"message": message} if (message := running.process.message) else {}),
            }
        }

    def _restart(self, running: Running) -> None:
        running.previous = running.state
        pause = _RESTART_SECONDS[min(running.restarts, len(_RESTART_SECONDS) - 1)]
        running.state = {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {pause} s"}}
        self._report("Running" if running in self.containers else "Pending")
        self._deleted.wait(pause)
        running.restarts += 1
        running.process = None

    def _end(self) -> None:
        """Stop all containers within the grace period of the deletion, which can become shorter meanwhile."""
        if self._lost.is_set():
            return
        for running in self.containers:
            self._before_stop(running)
        self._stop([running for running in self.containers if "running" in running.state], None)
        for running in self.containers:
            if running.process is not None and "terminated" not in running.state:
                self._note_end(running)

    def _before_stop(self, running: Running) -> None:
        hook = (running.manifest.get("lifecycle") or {}).get("preStop") or {}
        if running.process is None or running.process.exit_code is not None:
            return
        if "exec" in hook:
            running.process.run(hook["exec"]["command"], self._grace or 0)
        elif "sleep" in hook:
            running.process.wait(min(float(hook["sleep"]["seconds"]), self._grace or 0))

    def _stop(self, containers: Sequence[Running], grace_seconds: float | None) -> None:
        """Stop containers. ``grace_seconds`` ``None``: use the pod's remaining grace period."""
        processes = [running.process for running in containers if running.process is not None]
        for process in processes:
            process.terminate()
        waited = 0.0
        while not all(process.wait(POLL_SECONDS) for process in processes):
            waited += POLL_SECONDS
            if waited >= (self._grace or 0 if grace_seconds is None else grace_seconds) or self._lost.is_set():
                break
        for process in processes:
            process.kill()
            process.wait(10)

    def _kill_all(self) -> None:
        for running in [*self.inits, *self.containers]:
            if running.process is not None:
                running.process.kill()

    def _is_over(self) -> bool:
        return self._deleted.is_set() or self._lost.is_set()

    def _grace_seconds(self) -> float:
        return float(self.manifest["spec"].get("terminationGracePeriodSeconds", 30))

    def _phase_at_end(self) -> str:
        codes = [(running.state.get("terminated") or {}).get("exitCode", _KILLED) for running in self.containers]
        return "Failed" if any(codes) else "Succeeded"

    def _report(self, phase: str) -> None:
        """Report the status to the API, if it has changed and the API is reachable."""
        if self._lost.is_set():
            return
        status = self._status(phase)
        if status == self._reported:
            return
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}/status"
        body = {"metadata": {"uid": self.uid}, "status": status}  # refused for another pod of this name
        try:
            self._cluster.patch(path, body)
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409, 422):
                log.warning("the status of pod %s is refused: %s", self.name, error)
        except OSError as error:
            log.info("the status of pod %s is not reported yet: %s", self.name, error)
            return
        self._reported = status

    def _status(self, phase: str) -> dict[str, Any]:
        ready = phase == "Running" and all(running.is_ready for running in self.containers)
        initialised = all((item.state.get("terminated") or {}).get("exitCode") == 0 for item in self.inits)
        conditions = {"Initialized": initialised, "ContainersReady": ready, "Ready": ready}
        return {
            "phase": phase,
            "hostIP": self.place.node_address,
            "podIP": self.place.address,
            "podIPs": [{"ip": self.place.address}],
            "startTime": self._started_at,
            "conditions": [{"type": name, "status": str(holds)} for name, holds in conditions.items()],
            "initContainerStatuses": [self._container_status(item) for item in self.inits],
            "containerStatuses": [self._container_status(item) for item in self.containers],
        }

    def _container_status(self, running: Running) -> dict[str, Any]:
        return {
            "name": running.manifest["name"],
            "image": running.manifest["image"],
            "imageID": "",
            "ready": running.is_ready,
            "started": "running" in running.state and running.probes["startupProbe"].holds,
            "restartCount": running.restarts,
            "state": dict(running.state),
            "lastState": dict(running.previous or {}),
        }

    def _warn(self, reason: str, message: str) -> None:
        """Report an event of the pod, once per message."""
        if self._warned == message or self._lost.is_set():
            return
        self._warned = message
        self._changes += 1
        own = {"name": self.name, "uid": self.uid}
        event = {
            "metadata": {"name": f"{self.name}.{self.uid[:8]}.{self._changes}", "namespace": self.namespace},
            "involvedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": self.namespace, **own},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "source": {"component": "kubelet", "host": self.place.node},
            "firstTimestamp": _now(),
            "lastTimestamp": _now(),
            "count": 1,
        }
        with suppress(*_API_ERRORS):
            self._cluster.create(f"/api/v1/namespaces/{self.namespace}/events", event)

    def _remove(self) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        with suppress(*_API_ERRORS):
            self._cluster.delete(f"/api/v1/namespaces/{self.namespace}/pods/{self.name}", options)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
