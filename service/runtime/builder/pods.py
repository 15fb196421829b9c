"""Builders' pods, as the control plane that needs them sees them: made, kept with Spark started, taken, removed."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from epochal.errors import EnvironmentProblem, EpochalError, LauncherUnavailable
from epochal.service.domain.kubernetes.builders import BuilderPod, builder_manifest
from epochal.service.domain.kubernetes.conditions import BUILDERS, Json, Phase, PodCondition, condition_of, refusal
from epochal.service.domain.kubernetes.pod_identity import BUILDER_PREFIX
from epochal.service.domain.kubernetes.pod_identity import BUILDERS as SELECTOR
from epochal.service.domain.kubernetes.settings import KubernetesSettings
from epochal.service.runtime.kept_pods import KeptPods
from epochal.service.runtime.launchers.kubernetes.api import ClusterApi, Refused
from epochal.service.runtime.machine import steady_seconds
from epochal.service.runtime.spare_schedule import SpareSchedule, SpareTimes
from epochal.wire.projects import DEFAULT_PROJECT

log = logging.getLogger("epochal.builder")

LOOK_SECONDS = 1.0
SWEEP_SECONDS = 30.0
LEFT_OVER = timedelta(seconds=60)
"""A pod that has ended since so long is nobody's any more: whoever waited for it has seen how it ended."""
_TIMES: Final = SpareTimes(quiet=2.0, busy=2.0)


@dataclass(eq=False)
class MadePod:
    namespace: str
    name: str
    uid: str
    warm: bool
    begun_at: float


class BuilderPods:
    """Keeps ``settings.spare_builders`` pods that have Spark started, in the namespaces that were asked for last.

    A pod is of the control plane that made it, and ends by itself when that is gone. What is left of it then, any
    control plane removes.
    """

    def __init__(
        self,
        settings: KubernetesSettings,
        kept: KeptPods,
        control_plane: str,
        longest_seconds: float,
        variables: Mapping[str, str],
    ) -> None:
        """``control_plane``: where its pods call. ``longest_seconds``: of a request."""
        self._settings = settings
        self._places = settings.spare_builders
        self._api = ClusterApi(settings)
        self._kept = kept
        self._control_plane = control_plane
        self._longest_seconds = longest_seconds
        self._variables = dict(variables)
        self._warm: list[MadePod] = []
        self._asked: list[str] = []
        """Namespaces, the one that was asked for last first."""
        self._mine: set[str] = set()
        """By uid: those that somebody waits for or that are kept."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._schedule = SpareSchedule(_TIMES, lambda: True, at_once=True)
        self._swept_at = 0.0
        self._thread = threading.Thread(target=self._run, name="builder-pods", daemon=True)

    def open(self) -> None:
        self._kept.clear(BUILDER_PREFIX)
        self._thread.start()

    def close(self) -> None:
        """Those that are kept end; who waits for one ends it himself."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        with self._lock:
            warm, self._warm = self._warm, []
        for pod in warm:
            self.remove(pod)

    @property
    def states(self) -> tuple[int, int]:
        """How many are ready, and how many on their way."""
        with self._lock:
            names = [pod.name for pod in self._warm]
        ready = sum(self._kept.is_ready(name) for name in names)
        return ready, len(names) - ready

    def take(self, namespace: str) -> MadePod | None:
        """One that is ready there, or else on its way; it is the caller's from now on. ``None``: there is none."""
        with self._lock:
            self._schedule.asked_for()
            self._asked = [namespace, *(each for each in self._asked if each != namespace)][: self._places]
            there = [pod for pod in self._warm if pod.namespace == namespace]
            if not there:
                return None
            best = min(there, key=lambda pod: (not self._kept.is_ready(pod.name), pod.begun_at))
            self._warm.remove(best)
        return best

    def make(self, namespace: str, spark: Mapping[str, str], sized: bool, warm: bool = False) -> MadePod:
        """Raises ``EnvironmentProblem``, ``OptionError``."""
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
        manifest = builder_manifest(pod, settings)
        self._kept.expect(pod.name)
        try:
            created = self._created(namespace, manifest)
            self._kept.identify(pod.name, f"{namespace}/{pod.name}/{created.uid}")
        except BaseException:
            self._kept.forget(pod.name)
            raise
        created.warm = warm
        return created

    def condition(self, pod: MadePod) -> PodCondition:
        """Raises ``LauncherUnavailable``."""
        try:
            found = self._api.pod(pod.namespace, pod.name)
            if found is None or found["metadata"]["uid"] != pod.uid:
                return PodCondition(Phase.ENDED, f"The pod {pod.name} in {pod.namespace!r} was deleted.")
            condition = condition_of(found, sort=BUILDERS)
            if condition.phase is Phase.WAITING and condition.cause is None:
                condition = condition_of(found, self._api.events(pod.namespace, pod.uid), BUILDERS)
        except Refused as error:
            raise LauncherUnavailable(f"The cluster does not say how the builder is: {error.message}") from error
        return condition

    def remove(self, pod: MadePod) -> None:
        """Never raises: what cannot be removed now ends by itself, since it is not known any more, and is swept."""
        self._kept.forget(pod.name)
        with self._lock:
            self._mine.discard(pod.uid)
        try:
            self._api.delete_pod(pod.namespace, pod.name, pod.uid, 0)
        except (LauncherUnavailable, Refused) as error:
            log.warning("the pod %s of a builder cannot be removed now: %s", pod.name, error)

    def _created(self, namespace: str, manifest: Json) -> MadePod:
        try:
            created = self._api.create_pod(namespace, manifest)
        except Refused as error:
            refused = refusal(error.status, error.message, namespace, BUILDERS)
            raise EnvironmentProblem(refused.message) from error
        except LauncherUnavailable as error:
            raise EnvironmentProblem(
                f"The pipeline cannot be built, since no pod can be started for it: {error.message} Try again."
            ) from error
        metadata = created["metadata"]
        with self._lock:
            self._mine.add(metadata["uid"])
        return MadePod(namespace, metadata["name"], metadata["uid"], False, steady_seconds())

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            try:
                self._look()
                if steady_seconds() >= self._swept_at + SWEEP_SECONDS:
                    self._swept_at = steady_seconds()
                    self._sweep()
            except (EpochalError, Refused) as error:
                log.warning("the pods of builders cannot be looked after now: %s", error)
            except Exception:
                log.exception("the pods of builders cannot be looked after now")

    def _look(self) -> None:
        """What has become too old, or has ended, goes; another one is begun where one is missing."""
        with self._lock:
            warm = list(self._warm)
        for pod in warm:
            is_ready = self._kept.is_ready(pod.name)
            if is_ready:
                self._schedule.became_ready()
            why = self._schedule.why_over(steady_seconds() - pod.begun_at, is_ready)
            if why is None and self._is_surplus(pod):
                why = "is not where builders are asked for"
            if why is not None and self._is_let_go(pod):
                log.info("the builder %s %s, and ends", pod.name, why)
                self.remove(pod)
        missing = self._missing()
        if missing is not None and self._schedule.may_begin():
            self._schedule.begun()
            pod = self.make(missing, {}, sized=False, warm=True)
            with self._lock:
                self._warm.append(pod)

    def _places_by_namespace(self) -> Counter[str]:
        """How many there are to be in each namespace: one for each place, of those asked for last in turn."""
        asked = self._asked or [self._settings.namespace(DEFAULT_PROJECT)]
        return Counter(asked[place % len(asked)] for place in range(self._places))

    def _missing(self) -> str | None:
        with self._lock:
            left = self._places_by_namespace() - Counter(pod.namespace for pod in self._warm)
            return next(iter(left), None) if len(self._warm) < self._places else None

    def _is_surplus(self, pod: MadePod) -> bool:
        with self._lock:
            there = Counter(each.namespace for each in self._warm)
            return there[pod.namespace] > self._places_by_namespace()[pod.namespace]

    def _is_let_go(self, pod: MadePod) -> bool:
        """``False``: somebody has taken it."""
        with self._lock:
            if pod not in self._warm:
                return False
            self._warm.remove(pod)
        return True

    def _sweep(self) -> None:
        """What earlier control planes have left, and those of this one that ended by themselves."""
        for namespace in sorted(set(self._settings.namespaces.values())):
            self._sweep_in(namespace)

    def _sweep_in(self, namespace: str) -> None:
        for pod in self._api.pods(namespace, SELECTOR)[0]:
            metadata, condition = pod["metadata"], condition_of(pod, sort=BUILDERS)
            with self._lock:
                kept = next((warm for warm in self._warm if warm.uid == metadata["uid"]), None)
                is_mine = kept is not None or metadata["uid"] in self._mine
            if condition.phase is Phase.ENDED and kept is not None and self._is_let_go(kept):
                log.warning("the builder %s has ended by itself: %s", kept.name, condition.cause or "see its log")
                self.remove(kept)
            elif not is_mine and _is_left_over(pod, condition, self._settings.start_seconds):
                self._api.delete_pod(namespace, metadata["name"], metadata["uid"], 0)


def _is_left_over(pod: Json, condition: PodCondition, start_seconds: float) -> bool:
    """Whoever waited for it has seen that it ended, or has given up that it begins."""
    if condition.phase is Phase.RUNNING:
        return False  # it ends by itself
    age = datetime.now(UTC) - datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    if condition.phase is Phase.ENDED:
        return age > LEFT_OVER
    return age > LEFT_OVER + timedelta(seconds=start_seconds)
