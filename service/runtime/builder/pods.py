"""Life cycle of builder pods: creation, warm pool with Spark started, hand-out, deletion."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Final

from epochal.background.service import BackgroundService
from epochal.errors import EnvironmentProblem, LauncherUnavailable
from epochal.service.domain.kubernetes.builders import BuilderPod, builder_manifest
from epochal.service.domain.kubernetes.conditions import BUILDERS, Phase, PodCondition, condition_of, refusal
from epochal.service.domain.kubernetes.pod_identity import BUILDER_PREFIX
from epochal.service.domain.kubernetes.pod_identity import BUILDERS as SELECTOR
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.ports import SpareFigures
from epochal.service.runtime.kept_pods import PodDesk
from epochal.service.runtime.launchers.kubernetes.api import ClusterApi, Refused
from epochal.service.runtime.launchers.kubernetes.warm_pods import PodLauncher, WarmPod
from epochal.service.runtime.warm_pool import PoolTimes, WarmPool
from epochal.wire.projects import DEFAULT_PROJECT

log = logging.getLogger("epochal.builder")

SWEEP_SECONDS = 30.0
_TIMES: Final = PoolTimes(quiet=2.0, busy=2.0)


class BuilderPodLauncher(PodLauncher[str]):
    """Starts pods that build one pipeline. The key of a pod is its namespace."""

    kind = "builder"
    sort = BUILDERS

    def __init__(self, api: ClusterApi, kept: PodDesk, make: Callable[[str], WarmPod]) -> None:
        super().__init__(api, kept, grace_seconds=0)
        self._make = make

    def start(self, key: str) -> WarmPod:
        return self._make(key)


class BuilderPods:
    """Creates pods for single requests, and holds ``settings.spare_builders`` that have Spark started."""

    def __init__(
        self,
        settings: KubernetesSettings,
        kept: PodDesk,
        control_plane: str,
        longest_seconds: float,
        variables: Mapping[str, str],
    ) -> None:
        """``control_plane``: the URL that its pods call. ``longest_seconds``: timeout of a request."""
        self._settings = settings
        self._api = ClusterApi(settings)
        self._kept = kept
        self._control_plane = control_plane
        self._longest_seconds = longest_seconds
        self._variables = dict(variables)
        self._used: set[str] = set()
        """Uids of the pods of requests."""
        self._lock = threading.Lock()
        self._launcher = BuilderPodLauncher(self._api, kept, self._created)
        places, usual = settings.spare_builders, settings.namespace(DEFAULT_PROJECT)
        self._pool = WarmPool(self._launcher, places, lambda: usual, _TIMES)
        self._sweeper = BackgroundService("builders of other control planes", self._sweep, SWEEP_SECONDS)

    def open(self) -> None:
        self._kept.clear(BUILDER_PREFIX)
        self._kept.open()
        self._sweeper.start()
        self._pool.open()

    def close(self) -> None:
        """Delete the warm pods; a caller that waits for an answer deletes its pod."""
        self._sweeper.stop()
        self._pool.close()
        self._kept.close()

    @property
    def figures(self) -> SpareFigures:
        return self._pool.figures

    def take(self, namespace: str) -> WarmPod | None:
        """A warm pod there, ready or started; the caller owns it. ``None`` if none is available."""
        return self._pool.take(namespace, self._use)

    def make(self, namespace: str, spark: Mapping[str, str], sized: bool) -> WarmPod:
        """A pod for one request. Raises ``EnvironmentProblem``, ``OptionError``."""
        pod = self._created(namespace, spark, sized, warm=False)
        pod.warm = False
        return self._use(pod)

    def condition(self, pod: WarmPod) -> PodCondition:
        """Raises ``LauncherUnavailable``."""
        try:
            found = self._api.pod(pod.namespace, pod.name)
            if found is None or found["metadata"]["uid"] != pod.uid:
                return PodCondition(Phase.ENDED, f"The pod {pod.name} in {pod.namespace!r} was deleted.")
            condition = condition_of(found, sort=BUILDERS)
            if condition.phase is Phase.WAITING and condition.cause is None:
                condition = condition_of(found, self._api.events(pod.namespace, pod.uid), BUILDERS)
        except Refused as error:
            raise LauncherUnavailable(f"The cluster does not report the builder's state: {error.message}") from error
        return condition

    def remove(self, pod: WarmPod) -> None:
        """Never raises: a pod that cannot be deleted now ends on its own, and is swept."""
        with self._lock:
            self._used.discard(pod.uid)
        self._launcher.stop(pod)

    def _use(self, pod: WarmPod) -> WarmPod:
        with self._lock:
            self._used.add(pod.uid)
        return pod

    def _created(
        self, namespace: str, spark: Mapping[str, str] = {}, sized: bool = False, warm: bool = True
    ) -> WarmPod:
        settings = self._settings
        pod = BuilderPod(
            name=f"{BUILDER_PREFIX}{secrets.token_hex(8)}",
            namespace=namespace,
            control_plane=self._control_plane,
            seconds=_TIMES.retired + settings.start_seconds + self._longest_seconds,
            spark=spark,
            sized=sized,
            warm=warm,
            variables=self._variables,
        )
        try:
            return self._launcher.create(namespace, pod.name, builder_manifest(pod, settings))
        except Refused as error:
            refused = refusal(error.status, error.message, namespace, BUILDERS)
            raise EnvironmentProblem(refused.message) from error
        except LauncherUnavailable as error:
            raise EnvironmentProblem(
                f"The pipeline cannot be built, since no pod can be started for it: {error.message} Try again."
            ) from error

    def _sweep(self) -> None:
        for namespace in sorted(set(self._settings.namespaces.values())):
            with self._lock:
                used = set(self._used)
            start_seconds = self._settings.start_seconds
            self._launcher.sweep(namespace, SELECTOR, self._pool.workers, start_seconds, used)
