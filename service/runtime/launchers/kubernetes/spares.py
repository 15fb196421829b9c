"""Spare drivers in pods: which are kept, and how one is taken for an attempt.

A pod's name cannot be changed. So whose driver a spare has become is said by its labels, which change in one step of
the cluster's, from ``free`` to ``taken``, for one control plane and one attempt. It gets its orders when the catalog
says that it is the attempt's driver, and only then: of two that were taken for one attempt one has orders.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final

from epochal.errors import EpochalError, LauncherUnavailable
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
from epochal.service.domain.kubernetes.settings import KubernetesSettings
from epochal.service.domain.kubernetes.spark import spare_orders
from epochal.service.domain.ports import SpareFigures
from epochal.service.runtime.kept_pods import KeptPods
from epochal.service.runtime.launchers.kubernetes.api import ClusterApi, Refused
from epochal.service.runtime.launchers.spare_process import CLAIMED
from epochal.service.runtime.launchers.spares import OFFERED
from epochal.service.runtime.machine import steady_seconds
from epochal.service.runtime.spare_schedule import SpareSchedule, SpareTimes

log = logging.getLogger("epochal.spares")

LOOK_SECONDS = 1.0
SWEEP_SECONDS = 30.0
LEFT_OVER = timedelta(seconds=60)
FORGOTTEN_SECONDS = 60.0
"""So long this control plane answers a pod that was taken: it has its orders then."""
_TIMES: Final = SpareTimes(quiet=5.0, busy=5.0)
_SELECTOR: Final = f"{MANAGED_BY}=epochal,{SPARE}={FREE}"


@dataclass(frozen=True)
class PodKey:
    """All that is decided when the pod begins: which application's driver it can become."""

    namespace: str
    master: str
    spark: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, namespace: str, master: str, spark: Mapping[str, str]) -> PodKey:
        return cls(namespace, master, tuple(sorted(spark.items())))


@dataclass(eq=False)
class SpareDriver:
    key: PodKey
    name: str
    uid: str
    begun_at: float
    is_ready: bool = False


@dataclass(frozen=True)
class Keeping:
    """What a launcher needs to keep spares: where their pods call, this control plane first, and what its processes say
    to each other of them. ``usual``: what is kept before anything was asked for."""

    kept: KeptPods
    control_planes: tuple[str, ...]
    variables: Mapping[str, str]
    usual: PodKey


class SparePods:
    """Keeps ``number`` of the keys that were asked for last, while ``leads`` says so: nobody else takes them."""

    def __init__(self, settings: KubernetesSettings, api: ClusterApi, keeping: Keeping, number: int) -> None:
        self._settings = settings
        self._api = api
        self._keeping = keeping
        self._number = number
        self.leads: Callable[[], bool] = lambda: True
        self._spares: list[SpareDriver] = []
        self._asked: list[PodKey] = []
        self._answered: dict[str, float] = {}
        """By name: those that were taken, and since when."""
        self._taken = self._cold = 0
        self._warmed_seconds: float | None = None
        self._schedule = SpareSchedule(_TIMES, lambda: True, at_once=True)
        self._swept_at = 0.0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spare-pods", daemon=True)

    def open(self) -> None:
        self._keeping.kept.clear(SPARE_PREFIX)
        self._thread.start()

    def close(self) -> None:
        """Spares end; drivers that were spares go on."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.end_all()

    @property
    def figures(self) -> SpareFigures:
        with self._lock:
            ready = sum(spare.is_ready for spare in self._spares)
            return SpareFigures(
                limit=self._number,
                ready=ready,
                warming=len(self._spares) - ready,
                warmed_seconds=self._warmed_seconds,
                taken=self._taken,
                cold=self._cold,
            )

    def take(self, key: PodKey, name: DriverName, application: str) -> Json | None:
        """The pod of one that is this attempt's from now on; ``None``: there is none. Raises ``LauncherUnavailable``:
        one may be, and is found by the attempt's labels."""
        with self._lock:
            self._schedule.asked_for()
            self._asked = [key, *(other for other in self._asked if other != key)][: self._number]
            fitting = [spare for spare in self._spares if spare.key == key and spare.is_ready]
        for spare in fitting:
            with self._lock:
                if spare not in self._spares:
                    continue
                self._spares.remove(spare)
            pod = self._labelled(spare, name, application)
            if pod is not None:
                CLAIMED.hit()
                self._keeping.kept.take_for_driver(spare.name)
                with self._lock:
                    self._taken += 1
                    self._answered[spare.name] = steady_seconds()
                return pod
            self._end(spare)
        with self._lock:
            self._cold += 1
        return None

    def end_all(self) -> int:
        """How many there were: what they hold of the cluster somebody else needs."""
        with self._lock:
            spares, self._spares = self._spares, []
        for spare in spares:
            self._end(spare)
        return len(spares)

    def _labelled(self, spare: SpareDriver, name: DriverName, application: str) -> Json | None:
        """``None``: it is gone, has ended, or is somebody else's."""
        labels = {SPARE: TAKEN, EXECUTION: name.execution, ATTEMPT: str(name.attempt), APPLICATION: application}
        try:
            found = self._api.pod(spare.key.namespace, spare.name)
            if found is None or condition_of(found).phase is not Phase.RUNNING:
                return None
            return self._api.label_pod(spare.key.namespace, spare.name, spare.uid, (SPARE, FREE), labels)
        except Refused as error:
            log.warning("the spare %s cannot be taken: %s", spare.name, error.message)
            return None

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            try:
                self.look()
            except (EpochalError, Refused) as error:
                log.warning("spare drivers cannot be looked after now: %s", error)
            except Exception:
                log.exception("spare drivers cannot be looked after now")

    def look(self) -> None:
        """One round: what is ready, what has ended, what is too old, what is missing."""
        if steady_seconds() >= self._swept_at + SWEEP_SECONDS:
            self._swept_at = steady_seconds()
            self._sweep()
        if not self.leads():
            self.end_all()
            return
        with self._lock:
            spares, keys = list(self._spares), self._kept_keys()
        for spare in spares:
            if not spare.is_ready and self._keeping.kept.is_ready(spare.name):
                spare.is_ready = True
                self._schedule.became_ready()
                self._warmed_seconds = steady_seconds() - spare.begun_at
                log.info("spare driver %s is ready, %.1f s after it was begun", spare.name, self._warmed_seconds)
                OFFERED.hit()
            why = self._schedule.why_over(steady_seconds() - spare.begun_at, spare.is_ready)
            if why is None and spare.key not in keys:
                why = "is not what is asked for"
            if why is not None:
                self._let_go(spare, why)
        missing = self._missing(keys)
        if missing is not None and not self._closing.is_set() and self._schedule.may_begin():
            self._schedule.begun()
            self._begin(missing)

    def _kept_keys(self) -> list[PodKey]:
        keys = self._asked or [self._keeping.usual]
        return [keys[place % len(keys)] for place in range(self._number)]

    def _missing(self, keys: list[PodKey]) -> PodKey | None:
        with self._lock:
            there = [spare.key for spare in self._spares]
        if len(there) >= self._number:
            return None
        return next((key for key in keys if there.count(key) < keys.count(key)), None)

    def _begin(self, key: PodKey) -> None:
        name, keeping, spark = f"{SPARE_PREFIX}{secrets.token_hex(8)}", self._keeping, dict(key.spark)
        pod = SparePod(name, key.master, spark, key.namespace, keeping.control_planes, keeping.variables)
        manifest = driver_manifest(pod, self._settings)
        orders = spare_orders(key.master, spark, self._settings, key.namespace, name)
        keeping.kept.expect(name)
        try:
            keeping.kept.give(name, orders.model_dump_json().encode())
            uid = self._api.create_pod(key.namespace, manifest)["metadata"]["uid"]
            keeping.kept.identify(name, f"{key.namespace}/{name}/{uid}")
        except BaseException:
            keeping.kept.forget(name)
            raise
        with self._lock:
            self._spares.append(SpareDriver(key, name, uid, steady_seconds()))

    def _let_go(self, spare: SpareDriver, why: str) -> None:
        with self._lock:
            if spare not in self._spares:
                return  # taken meanwhile
            self._spares.remove(spare)
        log.info("spare driver %s %s, and ends", spare.name, why)
        self._end(spare)

    def _end(self, spare: SpareDriver) -> None:
        """Never raises: what cannot be removed now ends by itself, and is swept."""
        self._keeping.kept.forget(spare.name)
        try:
            self._api.delete_pod(spare.key.namespace, spare.name, spare.uid, 1)
        except (LauncherUnavailable, Refused) as error:
            log.warning("the spare driver %s cannot be removed now: %s", spare.name, error)

    def _sweep(self) -> None:
        """What earlier control planes have left, and those of this one that have ended by themselves."""
        now = steady_seconds()
        for name, taken_at in list(self._answered.items()):
            if now - taken_at > FORGOTTEN_SECONDS:
                del self._answered[name]
                self._keeping.kept.forget(name)
        for namespace in sorted(set(self._settings.namespaces.values())):
            for pod in self._api.pods(namespace, _SELECTOR)[0]:
                name, uid, condition = pod["metadata"]["name"], pod["metadata"]["uid"], condition_of(pod)
                with self._lock:
                    mine = next((spare for spare in self._spares if spare.uid == uid), None)
                if mine is not None:
                    if condition.phase is Phase.ENDED:
                        self._let_go(mine, f"has ended by itself ({condition.cause or 'see its log'})")
                elif condition.phase is not Phase.RUNNING and _age_of(pod) > self._longest(condition.phase):
                    self._api.delete_pod(namespace, name, uid, 0)

    def _longest(self, phase: Phase) -> timedelta:
        waits = timedelta(seconds=self._settings.start_seconds)
        return LEFT_OVER if phase is Phase.ENDED else LEFT_OVER + waits


def _age_of(pod: Json) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(pod["metadata"]["creationTimestamp"])


def taken_driver(pod: Json) -> DriverName | None:
    """Whose driver a pod is that was a spare; ``None``: nobody's."""
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    execution, attempt = labels.get(EXECUTION, ""), labels.get(ATTEMPT, "")
    is_taken = metadata["name"].startswith(SPARE_PREFIX) and labels.get(SPARE) == TAKEN
    return DriverName(execution, int(attempt)) if is_taken and execution and attempt.isdecimal() else None


def quota_is_used_up(error: Refused) -> bool:
    return error.status == HTTPStatus.FORBIDDEN and "exceeded quota" in error.message
