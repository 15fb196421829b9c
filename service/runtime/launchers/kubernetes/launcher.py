"""Launcher of drivers as pods: one pod per attempt, named after it, in the namespace of the application's project.

A reference is ``{namespace}/{name}/{uid}``: it has the same meaning for every control plane on any machine, and
never denotes another pod.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Self

from epochal import faults
from epochal.contracts.configuration import Configuration
from epochal.driver.orders import DriverOrders
from epochal.errors import EnvironmentProblem
from epochal.logs import FORMAT_VARIABLE
from epochal.service.domain.executions import DriverName
from epochal.service.domain.kubernetes.conditions import Json, Phase, PodCondition, condition_of, gone, refusal
from epochal.service.domain.kubernetes.manifest import DriverPod, driver_manifest
from epochal.service.domain.kubernetes.pod_identity import ATTEMPT, EXECUTION
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.ports import SpareFigures
from epochal.service.domain.settings import Settings
from epochal.service.runtime.kept_pods import PodDesk
from epochal.service.runtime.launchers.base import Launcher, ProcessReference
from epochal.service.runtime.launchers.kubernetes.api import ClusterApi, Refused, own_namespace
from epochal.service.runtime.launchers.kubernetes.logs import PodLogs
from epochal.service.runtime.launchers.kubernetes.spares import (
    Keeping,
    PodKey,
    SparePods,
    quota_is_used_up,
    taken_driver,
)
from epochal.service.runtime.launchers.kubernetes.watching import WatchedPods
from epochal.service.runtime.machine import steady_seconds
from epochal.wire.projects import DEFAULT_PROJECT, project_of

log = logging.getLogger("epochal.launcher")

KILL_SECONDS = 1
"""Grace period of a driver that is killed. Its remaining output is not awaited."""
FORCED_AFTER = timedelta(seconds=15)
"""Age of a deletion after which the node counts as unresponsive, and the pod is deleted by force."""
LOG_SECONDS = 3.0
"""Timeout for the end of a log before the reason of the driver's end is reported."""
EVENTS_SECONDS = 5.0
_MANY = 1000
_QUOTA_TRIES, _QUOTA_SECONDS = 5, 1.0
UNREAD_LOG = timedelta(seconds=60)
"""Retention of a terminated pod whose log cannot be read."""


@dataclass(frozen=True)
class _PodName:
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, pod: Json) -> Self:
        metadata = pod["metadata"]
        return cls(metadata["namespace"], metadata["name"], metadata["uid"])

    @classmethod
    def parse(cls, reference: ProcessReference) -> Self:
        namespace, name, uid = reference.identity.split("/")
        return cls(namespace, name, uid)

    @property
    def reference(self) -> ProcessReference:
        return ProcessReference(identity=f"{self.namespace}/{self.name}/{self.uid}")


class KubernetesLauncher(Launcher):
    """Launcher of drivers as pods.

    Pods are watched, so look-ups need no call to the cluster; only the absence of a pod is verified with a call.
    Authors
    may start pods with any labels, so the launcher copies logs to the folder ``logs`` only for drivers of the catalog.
    """

    def __init__(self, settings: KubernetesSettings, logs: Path, keeping: Keeping | None = None) -> None:
        """``keeping``: requirements of spares; without it, no spares are started.

        Raises ``OptionError`` where drivers would run beside the control plane, ``EnvironmentProblem`` if no
        cluster is configured.
        """
        settings.check_apart(own_namespace(settings))
        self._settings = settings
        self._api = ClusterApi(settings)
        self._logs = PodLogs(self._api, logs)
        self._keeping = keeping
        self._spares: SparePods | None = None
        self._events_asked: dict[str, float] = {}
        """Time of the last request for events, by the uid of the pod."""
        self._tell: Callable[[], None] = lambda: None
        self._watched = {
            namespace: WatchedPods(self._api, namespace, self._changed)
            for namespace in sorted(set(settings.namespaces.values()))
        }

    @classmethod
    def of(cls, settings: Settings) -> Self:
        if settings.kubernetes is None:
            raise EnvironmentProblem(
                "To launch drivers as pods, the control plane requires the settings of the cluster: start it with "
                "`epochal up --kubernetes FILE` (docs/operations/kubernetes.md)."
            )
        usual = Configuration()
        namespace = settings.kubernetes.namespace(DEFAULT_PROJECT)
        keeping = Keeping(
            kept=PodDesk.of(settings.pods_directory),
            control_planes=(settings.internal_url,),
            variables=passed_on(os.environ),
            usual=PodKey.of(namespace, usual.master, usual.spark),
        )
        return cls(settings.kubernetes, settings.logs_directory, keeping)

    def keep_spares(self, number: int, folder: Path) -> bool:
        if self._keeping is None:
            return False
        self._spares = SparePods(self._settings, self._api, self._keeping, number)
        return True

    def keep_spares_while(self, leads: Callable[[], bool]) -> None:
        if self._spares is not None:
            self._spares.hold_while(leads)

    @property
    def spares(self) -> SpareFigures:
        return SpareFigures() if self._spares is None else self._spares.figures

    def tell_of_ends(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def open(self) -> None:
        for watched in self._watched.values():
            watched.open()
        if self._spares is not None:
            self._spares.open()

    def close(self) -> None:
        if self._spares is not None:
            self._spares.close()
        self._logs.close()
        for watched in self._watched.values():
            watched.close()

    def check(self) -> None:
        for watched in self._watched.values():
            watched.check()

    def launch(self, orders: DriverOrders) -> ProcessReference:
        namespace = self._settings.namespace(project_of(orders.application))
        pod = DriverPod(
            name=DriverName(orders.execution, orders.attempt),
            application=orders.application,
            master=orders.configuration.master,
            spark=orders.configuration.spark,
            namespace=namespace,
            control_planes=orders.control_planes,
            variables=passed_on(os.environ),
        )
        manifest = driver_manifest(pod, self._settings)
        found = self._spare_for(pod)
        try:
            found = found or self._created(namespace, manifest)
        except Refused as error:
            if error.status != HTTPStatus.CONFLICT:
                raise refusal(error.status, error.message, namespace) from error
            found = self._there_already(namespace, pod.pod_name, manifest)
        self._watched[namespace].note(found)
        return _PodName.of(found).reference

    def _spare_for(self, pod: DriverPod) -> Json | None:
        """Return the pod of a spare that the cluster has assigned to this attempt, or assign one now."""
        if self._spares is None:
            return None
        try:
            labels = ",".join(f"{label}={value}" for label, value in pod.own_labels.items())
            mine = [found for found in self._api.pods(pod.namespace, labels)[0] if taken_driver(found) == pod.name]
        except Refused:
            return None  # without read permission, the start is refused too, with a message
        if mine:
            return mine[0]
        key = PodKey.of(pod.namespace, pod.master, pod.spark)
        return self._spares.take(key, pod.name, pod.application)

    def _created(self, namespace: str, manifest: Json) -> Json:
        try:
            return self._api.create_pod(namespace, manifest)
        except Refused as error:
            # Spares give up their quota for drivers. The cluster counts it a moment longer.
            if self._spares is None or not quota_is_used_up(error) or not self._spares.end_all():
                raise
        for _ in range(_QUOTA_TRIES):
            time.sleep(_QUOTA_SECONDS)
            with suppress(Refused):
                return self._api.create_pod(namespace, manifest)
        return self._api.create_pod(namespace, manifest)

    def _there_already(self, namespace: str, name: str, manifest: Json) -> Json:
        """Find a pod of an earlier, unrecorded launch. Raises ``EnvironmentProblem`` if the pod is not this
        driver's."""
        found = self._api.pod(namespace, name)
        if found is None:
            return self._api.create_pod(namespace, manifest)
        labels = found["metadata"].get("labels") or {}
        if any(labels.get(label) != value for label, value in manifest["metadata"]["labels"].items()):
            raise EnvironmentProblem(
                f"A pod {name} in {namespace!r} already exists and is not a driver of this attempt. Delete it, and "
                "start the application again."
            )
        return found

    def drivers(self) -> Mapping[DriverName, ProcessReference]:
        found = {}
        for watched in self._watched.values():
            for name, pod in watched.all().items():
                driver = _driver_of(name, pod)
                if driver is not None:
                    found[driver] = _PodName.of(pod).reference
        return found

    def alive(self, reference: ProcessReference) -> bool:
        pod = self._pod(_PodName.parse(reference))
        return pod is not None and condition_of(pod).phase is not Phase.ENDED

    def exit_code(self, reference: ProcessReference) -> int | None:
        return self._condition(_PodName.parse(reference)).exit_code

    def explain(self, reference: ProcessReference) -> str | None:
        name = _PodName.parse(reference)
        pod = self._pod(name)
        if pod is None:
            last = self._watched[name.namespace].last(name.uid) if name.namespace in self._watched else None
            cause = None if last is None else condition_of(last).cause
            return cause or gone(name.namespace, name.name)
        condition = condition_of(pod)
        if condition.phase is Phase.ENDED:
            self._logs.wait(pod, LOG_SECONDS)
        if condition.phase is Phase.WAITING and condition.cause is None and self._events_are_due(name.uid):
            condition = condition_of(pod, self._api.events(name.namespace, name.uid))
        return condition.cause

    def bring_log(self, reference: ProcessReference) -> None:
        pod = self._pod(_PodName.parse(reference))
        if pod is not None and _driver_of(pod["metadata"]["name"], pod) is not None:  # a spare may still look like one
            self._logs.follow(pod)

    def terminate(self, reference: ProcessReference, kill: bool) -> None:
        name = _PodName.parse(reference)
        pod = self._pod(name)
        if pod is None:
            self._logs.forget(name.uid)
            return
        if not kill:
            self._api.delete_pod(name.namespace, name.name, name.uid, None)
        elif condition_of(pod).phase is not Phase.ENDED:
            force = _deleted_for(pod) > FORCED_AFTER
            self._api.delete_pod(name.namespace, name.name, name.uid, 0 if force else KILL_SECONDS)
        elif self._logs.wait(pod, 0) or _ended_for(pod) > UNREAD_LOG:
            self._api.delete_pod(name.namespace, name.name, name.uid, 0)
            self._logs.forget(name.uid)

    def _events_are_due(self, uid: str) -> bool:
        """Limit requests for events to one in 5 s per pod: a supervisor checks twice per second."""
        due = steady_seconds() >= self._events_asked.get(uid, 0.0) + EVENTS_SECONDS
        if due:
            if len(self._events_asked) > _MANY:
                self._events_asked.clear()
            self._events_asked[uid] = steady_seconds()
        return due

    def _pod(self, name: _PodName) -> Json | None:
        """Return the pod; ``None`` if the cluster currently reports it as missing."""
        watched = self._watched.get(name.namespace)
        found = None if watched is None else watched.find(name.name, name.uid)
        if found is not None:
            return found
        pod = self._api.pod(name.namespace, name.name)
        return pod if pod is not None and pod["metadata"]["uid"] == name.uid else None

    def _condition(self, name: _PodName) -> PodCondition:
        pod = self._pod(name)
        watched = self._watched.get(name.namespace)
        if pod is None and watched is not None:
            pod = watched.last(name.uid)
        return PodCondition(Phase.ENDED) if pod is None else condition_of(pod)

    def _changed(self, pod: Json) -> None:
        watched = self._watched[pod["metadata"]["namespace"]]
        is_gone = watched.find(pod["metadata"]["name"], pod["metadata"]["uid"]) is None
        if is_gone or condition_of(pod).phase is Phase.ENDED:
            self._tell()


def _driver_of(name: str, pod: Json) -> DriverName | None:
    """Return the name of the driver in a pod; ``None`` if the pod is a spare or not a driver."""
    if (taken := taken_driver(pod)) is not None:
        return taken
    labels = pod["metadata"].get("labels") or {}
    execution, attempt = labels.get(EXECUTION, ""), labels.get(ATTEMPT, "")
    if not attempt.isdecimal() or name != f"{execution}-{attempt}":
        return None
    return DriverName(execution, int(attempt))


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables of the control plane's environment that pods receive."""
    passed = {name: environment[name] for name in (FORMAT_VARIABLE,) if environment.get(name)}
    if faults.switched_on(environment):
        passed |= {name: environment[name] for name in (faults.SWITCH, faults.ENVIRONMENT) if name in environment}
    return passed


def _deleted_for(pod: Json) -> timedelta:
    """Return the time since the deletion was due."""
    return _since(pod["metadata"].get("deletionTimestamp"))


def _ended_for(pod: Json) -> timedelta:
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("finishedAt"):
            return _since(ended["finishedAt"])
    return _since(pod["metadata"].get("creationTimestamp"))


def _since(moment: str | None) -> timedelta:
    return timedelta(0) if moment is None else datetime.now(UTC) - datetime.fromisoformat(moment)
