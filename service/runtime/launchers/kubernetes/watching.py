"""Cache of the drivers' pods of a namespace, maintained by a watch: look-ups need no call to the cluster.

The cache may lag slightly. Callers must therefore verify with a call that a pod is missing
(:class:`~epochal.service.runtime.launchers.kubernetes.launcher.KubernetesLauncher` does).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus

from epochal.background.task import BackgroundTask
from epochal.errors import EpochalError, LauncherUnavailable
from epochal.service.domain.kubernetes.conditions import Json
from epochal.service.domain.kubernetes.pod_identity import SELECTOR
from epochal.service.runtime.launchers.kubernetes.api import ClusterApi, Refused

log = logging.getLogger("epochal.launcher")

_WATCH_SECONDS = 120
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
_LISTED_SECONDS = 10.0
"""Timeout for the first list."""
_SILENT_SECONDS = 30.0
"""Time without a successful watch after which the cache counts as outdated."""
_REMEMBERED = 1000


class WatchedPods:
    """Watched pods. ``changed`` is called, from a separate thread, with each new or changed pod."""

    def __init__(self, api: ClusterApi, namespace: str, changed: Callable[[Json], None]) -> None:
        self._api = api
        self._namespace = namespace
        self._changed = changed
        self._pods: dict[str, Json] = {}
        """Keyed by name."""
        self._deleted: OrderedDict[str, Json] = OrderedDict()
        """Last known state of deleted pods by uid."""
        self._lock = threading.Lock()
        self._listed = threading.Event()
        self._closing = threading.Event()
        self._away_since: float | None = time.monotonic()
        self._why_away = "it has not answered yet"

    def open(self) -> None:
        BackgroundTask(f"pods-{self._namespace}", self._run)

    def close(self) -> None:
        """Request the end of the watch. Returns immediately; the thread ends with its watch."""
        self._closing.set()

    def check(self) -> None:
        """Raises ``LauncherUnavailable`` if the cluster has not responded for 30 s, or never."""
        away = self._away_since
        if not self._listed.is_set() or (away is not None and time.monotonic() - away > _SILENT_SECONDS):
            raise LauncherUnavailable(
                f"The pods in the namespace {self._namespace!r} cannot be watched: {self._why_away}. Running drivers "
                "continue; no driver is started until the cluster answers."
            )

    def all(self) -> Mapping[str, Json]:
        """Return all pods by name. Raises ``LauncherUnavailable`` until the first list."""
        if not self._listed.wait(_LISTED_SECONDS):
            self.check()
        with self._lock:
            return dict(self._pods)

    def find(self, name: str, uid: str) -> Json | None:
        """Return a cached pod; ``None`` if the cache does not contain it."""
        with self._lock:
            pod = self._pods.get(name)
        return pod if pod is not None and pod["metadata"]["uid"] == uid else None

    def last(self, uid: str) -> Json | None:
        """Return the last state of a deleted pod."""
        with self._lock:
            return self._deleted.get(uid)

    def note(self, pod: Json) -> None:
        """Add a pod that was just created or read."""
        with self._lock:
            self._pods[pod["metadata"]["name"]] = pod

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._closing.is_set():
            try:
                self._list_and_watch()
                pause = _FIRST_PAUSE_SECONDS
                continue
            except LauncherUnavailable as error:
                self._is_away(error.message)
            except Refused as error:
                if error.status != HTTPStatus.GONE:
                    self._is_away(f"{error.message} (HTTP status {error.status})")
            except EpochalError as error:
                self._is_away(error.message)
            except Exception:
                log.exception("the pods in %s cannot be watched", self._namespace)
                self._is_away("an unexpected error, which is in the control plane's log")
            self._closing.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _is_away(self, why: str) -> None:
        self._why_away = why
        if self._away_since is None or not self._listed.is_set():
            log.warning("the pods in %s cannot be watched now: %s", self._namespace, why)
        if self._away_since is None:
            self._away_since = time.monotonic()

    def _list_and_watch(self) -> None:
        """List the pods and watch them until the cluster has discarded the version, or cannot be reached."""
        items, version = self._api.pods(self._namespace, SELECTOR)
        self._replace({pod["metadata"]["name"]: pod for pod in items})
        while not self._closing.is_set():
            self._away_since = None
            for kind, found in self._api.watch(self._namespace, SELECTOR, version, _WATCH_SECONDS):
                if kind == "ERROR":
                    raise Refused(int(found.get("code") or 0), str(found.get("message")))
                version = str(found["metadata"]["resourceVersion"])
                if kind != "BOOKMARK":
                    self._see(kind, found)
                if self._closing.is_set():
                    return

    def _replace(self, pods: dict[str, Json]) -> None:
        with self._lock:
            before, self._pods = self._pods, pods
            for name, pod in before.items():
                if name not in pods:
                    self._remember(pod)
        self._listed.set()
        known = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in before.values()}
        for pod in pods.values():
            if known.get(pod["metadata"]["uid"]) != pod["metadata"]["resourceVersion"]:
                self._changed(pod)
        for name, pod in before.items():
            if name not in pods:
                self._changed(pod)

    def _see(self, kind: str, pod: Json) -> None:
        name = pod["metadata"]["name"]
        with self._lock:
            if kind == "DELETED":
                self._pods.pop(name, None)
                self._remember(pod)
            else:
                self._pods[name] = pod
        self._changed(pod)

    def _remember(self, pod: Json) -> None:
        self._deleted[pod["metadata"]["uid"]] = pod
        while len(self._deleted) > _REMEMBERED:
            self._deleted.popitem(last=False)
