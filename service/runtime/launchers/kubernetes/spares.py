"""Spare drivers in pods: the pool, and the assignment of a spare to an attempt.

A pod's name cannot be changed. The labels of a spare therefore identify its attempt: they change atomically from
``free`` to ``taken``, for one control plane and one attempt. A spare receives its orders only when the catalog records
it as the attempt's driver: of two spares taken for one attempt, only one receives orders.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from epochal.background.service import BackgroundService
from epochal.service.domain.executions import DriverName
from epochal.service.domain.kubernetes.conditions import Json, Phase, condition_of
from epochal.service.domain.kubernetes.manifest import SparePod, driver_manifest
from epochal.service.domain.kubernetes.pod_identity import (
    APPLICATION,
    ATTEMPT,
    EXECUTION,
    FREE,
    MANAGED_BY,
    SPARE,
    SPARE_PREFIX,
    TAKEN,
)
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.kubernetes.spark import spare_orders
from epochal.service.domain.ports import SpareFigures
from epochal.service.runtime.kept_pods import PodDesk
from epochal.service.runtime.launchers.kubernetes.api import ClusterApi, Refused
from epochal.service.runtime.launchers.kubernetes.warm_pods import PodLauncher, WarmPod
from epochal.service.runtime.launchers.spare_process import CLAIMED, OFFERED
from epochal.service.runtime.machine import steady_seconds
from epochal.service.runtime.warm_pool import PoolTimes, WarmPool

log = logging.getLogger("epochal.spares")

SWEEP_SECONDS = 30.0
FORGOTTEN_SECONDS = 60.0
"""Time for which this control plane answers a taken pod. By then the pod has its orders."""
_TIMES: Final = PoolTimes(quiet=5.0, busy=5.0)
_SELECTOR: Final = f"{MANAGED_BY}=epochal,{SPARE}={FREE}"


@dataclass(frozen=True)
class PodKey:
    """Settings fixed at the start of a pod. They determine the applications whose driver it can become."""

    namespace: str
    master: str
    spark: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, namespace: str, master: str, spark: Mapping[str, str]) -> PodKey:
        return cls(namespace, master, tuple(sorted(spark.items())))


@dataclass(frozen=True)
class Keeping:
    """Requirements of warm drivers: URLs of control planes, this one first, variables, and the desk that answers
    their pods.
    ``usual``: the key before the first request."""

    kept: PodDesk
    control_planes: tuple[str, ...]
    variables: Mapping[str, str]
    usual: PodKey


class DriverPodLauncher(PodLauncher[PodKey]):
    """Starts pods that become drivers."""

    kind = "driver"
    hands_out_unready = False

    def __init__(self, settings: KubernetesSettings, api: ClusterApi, keeping: Keeping) -> None:
        super().__init__(api, keeping.kept, grace_seconds=1)
        self._settings = settings
        self._keeping = keeping

    def start(self, key: PodKey) -> WarmPod:
        name, keeping, spark = f"{SPARE_PREFIX}{secrets.token_hex(8)}", self._keeping, dict(key.spark)
        pod = SparePod(name, key.master, spark, key.namespace, keeping.control_planes, keeping.variables)
        manifest = driver_manifest(pod, self._settings)
        orders = spare_orders(key.master, spark, self._settings, key.namespace, name)
        return self.create(key.namespace, name, manifest, orders.model_dump_json().encode())

    def became_ready(self, worker: WarmPod) -> None:
        OFFERED.hit()


class SparePods:
    """Holds warm drivers while this control plane leads: no other one takes them."""

    def __init__(self, settings: KubernetesSettings, api: ClusterApi, keeping: Keeping, number: int) -> None:
        self._settings = settings
        self._api = api
        self._kept = keeping.kept
        self._answered: dict[str, float] = {}
        """Start of the retention of pods that were taken, by name."""
        self._launcher = DriverPodLauncher(settings, api, keeping)
        self._pool = WarmPool(self._launcher, number, lambda: keeping.usual, _TIMES)
        self._sweeper = BackgroundService("warm drivers of other control planes", self._sweep, SWEEP_SECONDS)

    def hold_while(self, leads: Callable[[], bool]) -> None:
        self._pool.leads = leads

    def open(self) -> None:
        self._kept.clear(SPARE_PREFIX)
        self._kept.open()
        self._sweeper.start()
        self._pool.open()

    def close(self) -> None:
        """Warm drivers end; drivers that were taken continue."""
        self._sweeper.stop()
        self._pool.close()
        self._kept.close()

    @property
    def figures(self) -> SpareFigures:
        return self._pool.figures

    def take(self, key: PodKey, name: DriverName, application: str) -> Json | None:
        """Make a warm driver the driver of an attempt. Returns its pod, or ``None`` if there is none. Raises
        ``LauncherUnavailable`` if the result is not known; the pod is then found by the labels of the attempt."""
        return self._pool.take(key, lambda worker: self._claimed(worker, name, application))

    def end_all(self) -> int:
        """Release the resources that warm drivers hold in the cluster. Returns their number."""
        return self._pool.stop_all()

    def _claimed(self, worker: WarmPod, name: DriverName, application: str) -> Json | None:
        pod = self._labelled(worker, name, application)
        if pod is not None:
            CLAIMED.hit()
            self._kept.take_for_driver(worker.name)
            self._answered[worker.name] = steady_seconds()
        return pod

    def _labelled(self, worker: WarmPod, name: DriverName, application: str) -> Json | None:
        """``None``: the pod was deleted, has ended, or was taken by another control plane."""
        labels = {SPARE: TAKEN, EXECUTION: name.execution, ATTEMPT: str(name.attempt), APPLICATION: application}
        try:
            found = self._api.pod(worker.namespace, worker.name)
            if found is None or condition_of(found).phase is not Phase.RUNNING:
                return None
            return self._api.label_pod(worker.namespace, worker.name, worker.uid, (SPARE, FREE), labels)
        except Refused as error:
            log.warning("the warm driver %s cannot be taken: %s", worker.name, error.message)
            return None

    def _sweep(self) -> None:
        """Note warm drivers that have ended, and delete those of terminated control planes."""
        now = steady_seconds()
        for name, taken_at in list(self._answered.items()):
            if now - taken_at > FORGOTTEN_SECONDS:
                del self._answered[name]
                self._kept.forget(name)
        for namespace in sorted(set(self._settings.namespaces.values())):
            self._launcher.sweep(namespace, _SELECTOR, self._pool.workers, self._settings.start_seconds)


def taken_driver(pod: Json) -> DriverName | None:
    """Return the name of the driver that a spare pod has become; ``None`` if it has become none."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    execution, attempt = labels.get(EXECUTION, ""), labels.get(ATTEMPT, "")
    is_taken = metadata["name"].startswith(SPARE_PREFIX) and labels.get(SPARE) == TAKEN
    return DriverName(execution, int(attempt)) if is_taken and execution and attempt.isdecimal() else None


def quota_is_used_up(error: Refused) -> bool:
    return error.status == HTTPStatus.FORBIDDEN and "exceeded quota" in error.message
