"""Builder that runs in pods of the project's namespace.

There, an author's code shares no files, processes or network with the control plane.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from epochal.errors import EnvironmentProblem, LauncherUnavailable, PipelineError
from epochal.service.domain.building import BuildRequest, RekeyOf, TrialOf
from epochal.service.domain.kubernetes.builders import needs_own_pod
from epochal.service.domain.kubernetes.conditions import Phase, PodCondition
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.kubernetes.spark import check_spark_options, starts_executors
from epochal.service.domain.ports import Meanwhile, SpareFigures
from epochal.service.domain.settings import Settings
from epochal.service.runtime.builder.asking import REKEY_SECONDS, AskingBuilder
from epochal.service.runtime.builder.pods import BuilderPods
from epochal.service.runtime.kept_pods import PodDesk
from epochal.service.runtime.launchers.kubernetes.launcher import passed_on
from epochal.service.runtime.launchers.kubernetes.warm_pods import WarmPod

log = logging.getLogger("epochal.builder")

_MEANWHILE_SECONDS = 0.5
_CONDITION_SECONDS = 2.0
_PATIENCE_SECONDS = 30.0
"""Additional time for the start of the process and the transfer of the answer."""
_ANSWERS_SECONDS = 5.0
"""Timeout for a waiting pod to fetch its work."""
_MASTER_IN_ONE_POD = "local[2]"


class _Unusable(Exception):
    """A warm pod does not accept the request."""


class KubernetesBuilder(AskingBuilder):
    """A :class:`~epochal.service.domain.ports.Builder`. Each request has its own pod, which is deleted afterwards.

    The pod is a warm one, with Spark started, unless the application requires another image, nodes, variables or size.
    """

    def __init__(self, settings: KubernetesSettings, pods: BuilderPods, kept: PodDesk) -> None:
        self._settings = settings
        self._pods = pods
        self._kept = kept
        self._closing = threading.Event()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Create the builder. Raises ``OptionError`` and ``EnvironmentProblem`` if the cluster is not configured."""
        kubernetes = settings.kubernetes
        if kubernetes is None:
            raise EnvironmentProblem(
                "Builders in pods need `epochal up --kubernetes FILE` (docs/operations/kubernetes.md)."
            )
        kept = PodDesk.of(settings.pods_directory)
        variables = passed_on(os.environ)
        pods = BuilderPods(kubernetes, kept, settings.internal_url, REKEY_SECONDS, variables)
        return cls(kubernetes, pods, kept)

    def open(self) -> None:
        self._pods.open()

    def close(self) -> None:
        self._closing.set()
        self._pods.close()

    @property
    def spares(self) -> SpareFigures:
        figures = self._pods.figures
        return SpareFigures(limit=figures.limit, ready=figures.ready, warming=figures.warming)

    def exchange(self, project: str, request: BuildRequest, meanwhile: Meanwhile) -> bytes:
        namespace = self._settings.namespace(project)
        spark, sized = request.configuration.spark, isinstance(request.work, TrialOf | RekeyOf)
        check_spark_options(spark)
        if not needs_own_pod(spark, sized):
            while (pod := self._pods.take(namespace)) is not None:
                with suppress(_Unusable):
                    return self._exchange_with(pod, request, meanwhile)
        return self._exchange_with(self._pods.make(namespace, spark, sized), request, meanwhile)

    def _exchange_with(self, pod: WarmPod, request: BuildRequest, meanwhile: Meanwhile) -> bytes:
        """Exchange the request with one pod. Raises :class:`_Unusable` for a warm pod that does not respond."""
        try:
            work, code = _to_travel(_without_executors(request))
            try:
                self._kept.give(pod.name, work, code)
            except OSError as error:
                raise EnvironmentProblem(
                    f"The code cannot be handed to a builder: {error.strerror} ({error.filename}). Is there space left "
                    "in the data directory?"
                ) from error
            return self._answer_of(pod, request, meanwhile)
        finally:
            self._pods.remove(pod)

    def _answer_of(self, pod: WarmPod, request: BuildRequest, meanwhile: Meanwhile) -> bytes:
        patience = _ANSWERS_SECONDS if self._kept.is_ready(pod.name) else self._settings.start_seconds
        begin_until = time.monotonic() + patience
        answer_until: float | None = None
        due = condition_due = 0.0
        while True:
            if (answer := self._kept.answer(pod.name)) is not None:
                return answer
            now = time.monotonic()
            if answer_until is None and self._kept.has_begun(pod.name):
                answer_until = now + request.seconds + _PATIENCE_SECONDS
            if now >= due:
                due = now + _MEANWHILE_SECONDS
                meanwhile()
                if self._closing.is_set():
                    raise EnvironmentProblem("The control plane is closing.")
            if now >= condition_due:
                condition_due = now + _CONDITION_SECONDS
                self._check(pod, None if answer_until is not None else begin_until - now)
            elif pod.warm and answer_until is None and now >= begin_until:
                raise _Unusable
            if answer_until is not None and now >= answer_until:
                return b""
            self._kept.wait(pod.name, _MEANWHILE_SECONDS)

    def _check(self, pod: WarmPod, seconds_left: float | None) -> None:
        """Raises if no answer can arrive. ``seconds_left``: time until the pod must have begun; ``None`` if it has."""
        try:
            condition = self._pods.condition(pod)
        except LauncherUnavailable as error:
            condition = PodCondition(Phase.WAITING, error.message)
        has_ended = condition.phase is Phase.ENDED and self._kept.answer(pod.name) is None
        if pod.warm and seconds_left is not None and (has_ended or seconds_left <= 0):
            log.warning("the builder %s does not answer, and is replaced: %s", pod.name, condition.cause or "no cause")
            raise _Unusable
        if has_ended:
            if condition.exit_code is not None and "OOMKilled" in (condition.cause or ""):
                raise PipelineError(condition.cause)
            why = condition.cause or f"Its exit code is {condition.exit_code}: see the log of the pod {pod.name}."
            raise EnvironmentProblem(f"The pod that was to build the pipeline has ended. {why}")
        if seconds_left is not None and seconds_left <= 0:
            why = condition.cause or "`kubectl describe pod` may say why; `start_seconds` is how long one may take."
            raise EnvironmentProblem(
                f"The pod for building the pipeline has not started within {self._settings.start_seconds:g} s. {why}"
            )


def _without_executors(request: BuildRequest) -> BuildRequest:
    """Replace a master that starts executors: a builder has one pod and no permission to start others."""
    if not starts_executors(request.configuration.master):
        return request
    configuration = request.configuration.model_copy(update={"master": _MASTER_IN_ONE_POD})
    return request.model_copy(update={"configuration": configuration})


def _to_travel(request: BuildRequest) -> tuple[bytes, Mapping[str, Path]]:
    """Return the request, with code identified by sha256 and name, and the paths of that code."""
    code: dict[str, Path] = {}

    def known(path: Path) -> Path:
        try:
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise PipelineError(f"The artifact {path.name} cannot be read: {error.strerror}.") from error
        code[sha256] = path
        return Path(sha256, path.name)

    changed: dict[str, object] = {"artifact": known(request.artifact)}
    if isinstance(request.work, TrialOf):
        producer = request.work.producer.model_copy(update={"artifact": known(request.work.producer.artifact)})
        changed["work"] = request.work.model_copy(update={"producer": producer})
    return request.model_copy(update=changed).model_dump_json().encode(), code
