"""Copies drivers' logs from the cluster into the common log folder while their pods exist.

In the folder they are treated like all logs: rotated, followed, and retained after the driver has terminated. The
caller
selects the pods according to the catalog: labels alone prove nothing, since authors may start pods.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

from epochal.background.task import BackgroundTask
from epochal.errors import LauncherUnavailable
from epochal.service.domain.kubernetes.conditions import Json, Phase, condition_of
from epochal.service.domain.kubernetes.pod_identity import APPLICATION, ATTEMPT, DRIVER, EXECUTION
from epochal.service.runtime.launchers.kubernetes.api import ClusterApi, Refused
from epochal.service.runtime.logs.files import log_path, read_end

log = logging.getLogger("epochal.launcher")

_TAIL_BYTES = 4096
_PAUSE_SECONDS = 1.0


class PodLogs:
    """Log copier. ``folder`` contains ``{application}/{execution}-{attempt}.log``."""

    def __init__(self, api: ClusterApi, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._followed: dict[str, _Following] = {}
        """Keyed by the pod's uid."""
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def follow(self, pod: Json) -> None:
        """Copy the log of a pod continuously, if the pod has begun. Idempotent."""
        if not _has_begun(pod) or self._closing.is_set():
            return
        uid = pod["metadata"]["uid"]
        with self._lock:
            if uid in self._followed:
                return
            following = self._followed[uid] = _Following(self._api, pod, _path(self._folder, pod), self._closing)
        following.begin()

    def wait(self, pod: Json, seconds: float) -> bool:
        """Wait at most ``seconds`` for the complete log of a terminated pod.

        Returns ``True`` if the log is complete or not being copied.
        """
        with self._lock:
            following = self._followed.get(pod["metadata"]["uid"])
        return following is None or following.complete.wait(seconds)

    def forget(self, uid: str) -> None:
        """Forget a deleted pod. The copied part of its log stays."""
        with self._lock:
            self._followed.pop(uid, None)

    def close(self) -> None:
        self._closing.set()


class _Following:
    """Copies one log until its end."""

    def __init__(self, api: ClusterApi, pod: Json, path: Path, closing: threading.Event) -> None:
        self.complete = threading.Event()
        self._api = api
        self._namespace, self._name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._uid = pod["metadata"]["uid"]
        self._path = path
        self._closing = closing

    def begin(self) -> None:
        BackgroundTask(f"log-{self._name}", self._run)

    def _run(self) -> None:
        ended = False
        while not ended and not self._closing.is_set():
            try:
                # Read the log once more after the end of the pod: the previous stream may have stopped earlier.
                ended = self._has_ended()
                self._read_on(follow=not ended)
            except LauncherUnavailable as error:
                ended = False
                log.info("the log of pod %s cannot be read yet: %s", self._name, error)
            except Refused as error:
                log.info("the cluster has no log of pod %s: %s", self._name, error)
            except OSError as error:
                log.warning("the log %s cannot be written: %s", self._path, error)
            if not ended:
                self._closing.wait(_PAUSE_SECONDS)
        self.complete.set()

    def _has_ended(self) -> bool:
        pod = self._api.pod(self._namespace, self._name)
        return pod is None or pod["metadata"]["uid"] != self._uid or condition_of(pod).phase is Phase.ENDED

    def _read_on(self, follow: bool) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        known = self._known_bytes()
        with self._path.open("ab") as file:
            for part in _after(self._api.log(self._namespace, self._name, DRIVER, follow), known):
                file.write(part)
                file.flush()
                if self._closing.is_set():
                    return

    def _known_bytes(self) -> int:
        """Return the length of the part of the cluster's log that has been copied, located by the end of the file.

        If the node has rotated the log meanwhile, the end is not found, and the entire log counts as new.
        """
        tail = read_end(self._path, _TAIL_BYTES)
        if not tail:
            return 0
        there = b"".join(self._api.log(self._namespace, self._name, DRIVER, follow=False))
        at = there.rfind(tail)
        return 0 if at < 0 else at + len(tail)


def _after(parts: Iterator[bytes], known: int) -> Iterator[bytes]:
    for part in parts:
        if known >= len(part):
            known -= len(part)
            continue
        yield part[known:]
        known = 0


def _has_begun(pod: Json) -> bool:
    """Return ``True`` if the driver's container may have written output."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == DRIVER:
            state = container.get("state") or {}
            return "running" in state or "terminated" in state
    return False


def _path(folder: Path, pod: Json) -> Path:
    labels = pod["metadata"]["labels"]
    return log_path(folder, labels[APPLICATION], labels[EXECUTION], int(labels[ATTEMPT]))
