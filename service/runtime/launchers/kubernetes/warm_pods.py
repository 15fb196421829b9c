"""The launcher of warm pods: creates them, and deletes those of control planes that have terminated."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from epochal.errors import LauncherUnavailable
from epochal.service.domain.kubernetes.conditions import DRIVERS, Json, Phase, PodCondition, condition_of
from epochal.service.runtime.kept_pods import PodDesk
from epochal.service.runtime.launchers.kubernetes.api import ClusterApi, Refused
from epochal.service.runtime.warm_pool import Key, WarmLauncher

log = logging.getLogger("epochal.launcher")

LEFT_OVER = timedelta(seconds=60)
"""Retention of a terminated pod, so that the waiting control plane can read the reason."""


@dataclass(eq=False)
class WarmPod:
    """``warm``: started before there was work for it. ``ended``: why the pod has ended, once a sweep has found it."""

    namespace: str
    name: str
    uid: str
    warm: bool = True
    ended: str | None = None

    def __str__(self) -> str:
        return self.name


class PodLauncher(WarmLauncher[Key, WarmPod]):
    """Launcher of warm pods.

    A pod belongs to the control plane that has created it, and ends when that control plane no longer responds. Any
    control plane then deletes the remaining object.
    """

    sort = DRIVERS

    def __init__(self, api: ClusterApi, kept: PodDesk, grace_seconds: int) -> None:
        self._api = api
        self._kept = kept
        self._grace_seconds = grace_seconds

    @abstractmethod
    def start(self, key: Key) -> WarmPod: ...

    def create(self, namespace: str, name: str, manifest: Json, work: bytes | None = None) -> WarmPod:
        """Create a pod. ``work``: its first work."""
        self._kept.expect(name)
        try:
            if work is not None:
                self._kept.give(name, work)
            uid = self._api.create_pod(namespace, manifest)["metadata"]["uid"]
            self._kept.identify(name, f"{namespace}/{name}/{uid}")
        except BaseException:
            self._kept.forget(name)
            raise
        return WarmPod(namespace, name, uid)

    def is_ready(self, worker: WarmPod) -> bool:
        return self._kept.is_ready(worker.name)

    def why_ended(self, worker: WarmPod) -> str | None:
        return worker.ended

    def stop(self, worker: WarmPod, kill: bool = False) -> None:
        self._kept.forget(worker.name)
        try:
            self._api.delete_pod(worker.namespace, worker.name, worker.uid, self._grace_seconds)
        except (LauncherUnavailable, Refused) as error:
            # The pod ends on its own, since its calls are refused now, and a sweep deletes it.
            log.warning("the pod %s cannot be deleted now: %s", worker.name, error)

    def sweep(
        self, namespace: str, selector: str, warm: Collection[WarmPod], start_seconds: float, used: Collection[str] = ()
    ) -> None:
        """Note the pods of ``warm`` that have ended, and delete those that no control plane uses. ``used``: uids of
        other pods of this control plane."""
        by_uid = {worker.uid: worker for worker in warm}
        for pod in self._api.pods(namespace, selector)[0]:
            name, uid, condition = pod["metadata"]["name"], pod["metadata"]["uid"], condition_of(pod, sort=self.sort)
            if uid in by_uid:
                if condition.phase is Phase.ENDED:
                    by_uid[uid].ended = condition.cause or "see its log"
            elif uid not in used and _is_left_over(pod, condition, start_seconds):
                self._api.delete_pod(namespace, name, uid, 0)


def _is_left_over(pod: Json, condition: PodCondition, start_seconds: float) -> bool:
    if condition.phase is Phase.RUNNING:
        return False  # it ends on its own
    age = datetime.now(UTC) - datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    if condition.phase is Phase.ENDED:
        return age > LEFT_OVER
    return age > LEFT_OVER + timedelta(seconds=start_seconds)
