"""Interpretation of a pod's status: its phase, the cause, and the remedy. A pure function of the API's answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

from epochal.errors import EnvironmentProblem, EpochalError
from epochal.service.domain.kubernetes.pod_identity import BUILDER, DRIVER

Json = Mapping[str, Any]

_KILLED = 137
_SIGNALS = 128
_MESSAGE_CHARACTERS = 600


class Phase(Enum):
    """Phase of a pod."""

    WAITING = "waiting"
    """The driver has not begun."""
    RUNNING = "running"
    ENDED = "ended"
    """The pod has terminated."""


@dataclass(frozen=True)
class PodCondition:
    """``cause``: sentences for people, with a remedy; ``None`` if nothing is wrong. ``exit_code``: exit code of its
    container, negative for a signal; ``None`` if it has not ended or is unknown."""

    phase: Phase
    cause: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True)
class Sort:
    """Kinds of pods: their name in messages and of their container, the settings for their size and memory, and the
    setting of their service account."""

    container: str
    size: str
    memory: str
    account: str

    def __str__(self) -> str:
        return self.container


DRIVERS: Final = Sort(
    DRIVER,
    "spark.driver.memory, spark.kubernetes.driver.request.cores",
    "spark.driver.memory is the heap, spark.driver.memoryOverhead the memory beside it",
    "service_account",
)
BUILDERS: Final = Sort(
    BUILDER,
    "`builder_memory` and `builder_cpu` in the settings; for trials and rekeys spark.driver.memory",
    "`builder_memory` in the settings; for trials and rekeys spark.driver.memory",
    "builder_service_account",
)


class PodRefused(EpochalError):
    """The cluster refused the pod of a driver, and may accept another one later."""

    slug = "pod-refused"


def condition_of(pod: Json, events: Sequence[Json] = (), sort: Sort = DRIVERS) -> PodCondition:
    """``events``: events of the pod, oldest first. Without them the cause of waiting for volumes is unknown."""
    status = pod.get("status") or {}
    phase = status.get("phase")
    state = _own_status(status, sort).get("state") or {}
    if (ended := state.get("terminated")) is not None:
        return PodCondition(Phase.ENDED, _why_ended(pod, status, ended, sort), _exit_code(ended))
    if phase in ("Failed", "Succeeded"):
        return PodCondition(Phase.ENDED, _why_failed(status))
    if "running" in state:
        return PodCondition(Phase.RUNNING, _disruption(status))
    if phase == "Unknown":
        return PodCondition(Phase.RUNNING, _NODE_SILENT)
    return _while_waiting(pod, status, events, sort)


def refusal(status: int, message: str, namespace: str, sort: Sort = DRIVERS) -> EpochalError:
    """The error for a pod that the cluster's API refused. ``EnvironmentProblem`` if another pod would be refused as
    well; :class:`PodRefused` if a later one may succeed."""
    said = _sentence(message)
    if "exceeded quota" in message:
        return PodRefused(
            f"The quota of the namespace {namespace!r} is exhausted for the {sort}'s pod: {said} Stop applications"
            f" there, make the {sort} smaller ({sort.size}), or have the quota raised."
        )
    if "violates PodSecurity" in message:
        return EnvironmentProblem(
            f"The namespace {namespace!r} does not admit the {sort}'s pod: {said} The pod template overrides what "
            "Epochal requires: remove that from the settings of the control plane."
        )
    if "is being terminated" in message:
        return PodRefused(f"The namespace {namespace!r} is being deleted. Create it again, or choose another one.")
    if status == HTTPStatus.NOT_FOUND:
        return PodRefused(f"There is no namespace {namespace!r}. Create it, or correct `namespaces` in the settings.")
    if status == HTTPStatus.FORBIDDEN and "serviceaccount" in message.lower() and "not found" in message:
        return PodRefused(
            f"The service account of {sort}s is missing in the namespace {namespace!r}: {said} Create it, or "
            f"correct `{sort.account}` in the settings."
        )
    if status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED):
        return PodRefused(
            f"The control plane may not start pods in the namespace {namespace!r}: {said} Bind the role of the "
            "control plane there, as the chart does for the namespaces of projects."
        )
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return EnvironmentProblem(
            f"The cluster considers the {sort}'s pod invalid: {said} Correct the pod template, or the pod settings"
            " in the application's configuration."
        )
    return PodRefused(f"The cluster refused the {sort}'s pod (HTTP status {status}): {said}")


def gone(namespace: str, name: str) -> str:
    """The cause if a pod is missing that the control plane did not delete."""
    return (
        f"The pod {name} in {namespace!r} was deleted: by a user, or because its node was drained or lost. See "
        "`kubectl get events`."
    )


_NODE_SILENT: Final = "The node of the pod does not respond."
_PULLING: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError"}
)
_FINAL_PULLING: Final = frozenset({"ImagePullBackOff", "ErrImageNeverPull"})
"""Pulling was retried, or will not be."""
_NOT_CREATED: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_DISRUPTIONS: Final = {
    "PreemptionByScheduler": "The pod was preempted by one of higher priority.",
    "DeletionByTaintManager": ("The pod's node no longer tolerates it: the node is lost, drained, or has a new taint."),
    "EvictionByEvictionAPI": "The pod was evicted: its node is drained, or the eviction was requested.",
    "DeletionByPodGC": "The pod's node no longer exists.",
    "TerminationByKubelet": ("The pod's node has terminated it: it lacks memory or disk space, or is shutting down."),
}


def _own_status(status: Json, sort: Sort) -> Json:
    """Status of Epochal's container; of the first one if none has its name."""
    containers: Sequence[Json] = status.get("containerStatuses") or ()
    named = [container for container in containers if container.get("name") == sort.container]
    return next(iter(named or containers), {})


def _exit_code(ended: Json) -> int | None:
    code = ended.get("exitCode")
    if code is None:
        return None
    return _SIGNALS - int(code) if int(code) > _SIGNALS else int(code)


def _why_ended(pod: Json, status: Json, ended: Json, sort: Sort) -> str | None:
    reason, code = ended.get("reason"), ended.get("exitCode")
    if reason == "OOMKilled":
        limit = _memory_limit(pod, sort)
        size = f" of {limit}" if limit else ""
        return (
            f"The {sort} was killed for its memory (OOMKilled): it and its JVM exceeded the pod's limit{size}. "
            f"Raise the limit: {sort.memory}."
        )
    if disruption := _disruption(status) or _why_failed(status):
        return disruption
    if reason in ("StartError", "ContainerCannotRun"):
        return (
            f"The {sort}'s program cannot be started: {_sentence(ended.get('message'))} Is the image one of "
            "Epochal, with `python` on its PATH?"
        )
    if code == _KILLED:
        return f"The {sort} was killed (SIGKILL), but not for its memory."
    # A driver reports it in its log, which is stored.
    return (_sentence(ended.get("message")) or None) if sort is BUILDERS else None


def _why_failed(status: Json) -> str | None:
    """Failure of the pod as a whole."""
    if (disruption := _disruption(status)) is not None:
        return disruption
    reason, message = status.get("reason"), _sentence(status.get("message"))
    match reason:
        case None:
            return None
        case "Evicted":
            return (
                f"The pod was evicted by its node: {message} Request enough resources for it, or free some on the node."
            )
        case "NodeLost":
            return _NODE_SILENT
        case "Terminated" | "NodeShutdown" | "Shutdown":
            return f"The pod's node was shut down. {message}".rstrip()
        case "DeadlineExceeded":
            return "The pod's activeDeadlineSeconds has expired. Remove it from the pod template."
    return f"The pod failed ({reason}): {message}".rstrip(" :")


def _disruption(status: Json) -> str | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = str(condition.get("reason"))
            known = _DISRUPTIONS.get(reason, f"The pod was terminated ({reason}).")
            return f"{known} {_sentence(condition.get('message'))}".rstrip()
    return None


def _while_waiting(pod: Json, status: Json, events: Sequence[Json], sort: Sort) -> PodCondition:
    for container in _containers(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason"), _sentence(waiting.get("message"))
        image = container.get("image") or _image_of(pod, container.get("name"))
        if reason == "InvalidImageName":
            cause = (
                f"{image!r} is not the name of an image. Correct it in the application's configuration or the settings."
            )
            return PodCondition(Phase.ENDED, cause)
        if reason in _PULLING:
            cause = (
                f"The image {image!r} cannot be pulled ({reason}): {message} Check its name, whether its registry "
                "answers, and whether the service account or the pod template has its pull secret."
            )
            return PodCondition(Phase.ENDED if reason in _FINAL_PULLING else Phase.WAITING, cause)
        if reason in _NOT_CREATED:
            cause = (
                f"The container {container.get('name')!r} cannot be created ({reason}): {message} Check that each "
                "secret and config map exists that the pod refers to, and that its image names a non-root user."
            )
            return PodCondition(Phase.ENDED, cause)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            cause = (
                f"No node has room for the pod ({condition.get('reason')}): {_sentence(condition.get('message'))} "
                f"Make the {sort} smaller ({sort.size}), or add nodes."
            )
            return PodCondition(Phase.WAITING, cause)
    for event in reversed(events):
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            cause = (
                f"A volume of the pod is not available: {_sentence(event.get('message'))} Create what it refers "
                "to, or correct the pod template."
            )
            return PodCondition(Phase.WAITING, cause)
    return PodCondition(Phase.WAITING)


def _containers(status: Json) -> Iterator[Json]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _manifest_of(pod: Json, container: str | None) -> Json:
    spec = pod.get("spec") or {}
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return next((each for each in containers if each.get("name") == container), {})


def _image_of(pod: Json, container: str | None) -> str:
    return str(_manifest_of(pod, container).get("image", ""))


def _memory_limit(pod: Json, sort: Sort) -> str | None:
    limits = (_manifest_of(pod, sort.container).get("resources") or {}).get("limits") or {}
    memory = limits.get("memory")
    return None if memory is None else str(memory)


def _sentence(message: object) -> str:
    """A cluster's message as part of a paragraph, limited to a few lines."""
    text = re.sub(r"\s+", " ", str(message or "")).strip()
    if len(text) > _MESSAGE_CHARACTERS:
        text = f"{text[:_MESSAGE_CHARACTERS].rstrip()} .."
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
