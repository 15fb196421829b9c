"""What a pod's status means: where it stands, why, and what to do about it. A pure function of what the API says."""

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
    """Where a pod stands."""

    WAITING = "waiting"
    """Its driver has not begun."""
    RUNNING = "running"
    ENDED = "ended"
    """Nothing of it runs any more, or ever will."""


@dataclass(frozen=True)
class PodCondition:
    """``cause``: sentences for people, with what to do; ``None``: nothing is wrong. ``exit_code``: of its driver,
    negative for a signal; ``None``: it has not ended, or nobody knows."""

    phase: Phase
    cause: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True)
class Sort:
    """What a pod is, as people call it, and its container is called; how its size and its memory are said, and in which
    setting its service account."""

    container: str
    size: str
    memory: str
    account: str

    def __str__(self) -> str:
        return self.container


DRIVERS: Final = Sort(
    DRIVER,
    "spark.driver.memory, spark.kubernetes.driver.request.cores",
    "spark.driver.memory is the heap, spark.driver.memoryOverhead what is beside it",
    "service_account",
)
BUILDERS: Final = Sort(
    BUILDER,
    "`builder_memory` and `builder_cpu` in the settings; for trials and rekeys spark.driver.memory",
    "`builder_memory` in the settings; for trials and rekeys spark.driver.memory",
    "builder_service_account",
)


class PodRefused(EpochalError):
    """The cluster did not take the pod of a driver, and may take another one later."""

    slug = "pod-refused"


def condition_of(pod: Json, events: Sequence[Json] = (), sort: Sort = DRIVERS) -> PodCondition:
    """``events``: of the pod, oldest first; without them it is not known why volumes are waited for."""
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
    """Why the cluster did not take a pod, by the answer of its API. What another pod would meet, too, is an
    ``EnvironmentProblem``; what may be otherwise later is :class:`PodRefused`."""
    said = _sentence(message)
    if "exceeded quota" in message:
        return PodRefused(
            f"The quota of the namespace {namespace!r} has no room for the {sort}'s pod: {said} Stop something there, "
            f"make the {sort} smaller ({sort.size}), or have the quota raised."
        )
    if "violates PodSecurity" in message:
        return EnvironmentProblem(
            f"The namespace {namespace!r} does not admit the {sort}'s pod: {said} Something in the pod template takes "
            "away what Epochal asks for: remove that from the settings of the control plane."
        )
    if "is being terminated" in message:
        return PodRefused(f"The namespace {namespace!r} is being deleted. Make it again, or choose another one.")
    if status == HTTPStatus.NOT_FOUND:
        return PodRefused(f"There is no namespace {namespace!r}. Make it, or correct `namespaces` in the settings.")
    if status == HTTPStatus.FORBIDDEN and "serviceaccount" in message.lower() and "not found" in message:
        return PodRefused(
            f"The service account of {sort}s is missing in the namespace {namespace!r}: {said} Make it, or correct "
            f"`{sort.account}` in the settings."
        )
    if status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED):
        return PodRefused(
            f"The control plane may not start pods in the namespace {namespace!r}: {said} Bind the role of the control "
            "plane there, as the chart does for the namespaces of projects."
        )
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
        return EnvironmentProblem(
            f"The cluster does not take the {sort}'s pod for one: {said} Correct the pod template, or what the "
            "application's configuration says of pods."
        )
    return PodRefused(f"The cluster did not take the {sort}'s pod (HTTP status {status}): {said}")


def gone(namespace: str, name: str) -> str:
    """Why there is no pod any more, when nobody here has ended it."""
    return (
        f"The pod {name} in {namespace!r} was deleted: by somebody, or since its node was drained or is lost. "
        "`kubectl get events` may say more."
    )


_NODE_SILENT: Final = "The node of the pod is not heard any more."
_PULLING: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError"}
)
_FINAL_PULLING: Final = frozenset({"ImagePullBackOff", "ErrImageNeverPull"})
"""It was tried more than once, or never will be."""
_NOT_CREATED: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_DISRUPTIONS: Final = {
    "PreemptionByScheduler": "The pod made room for one of higher priority.",
    "DeletionByTaintManager": "The pod's node does not let it stay: the node is lost, drained, or has a new taint.",
    "EvictionByEvictionAPI": "The pod was evicted: its node is drained, or somebody asked for it.",
    "DeletionByPodGC": "The pod's node is gone.",
    "TerminationByKubelet": "The pod's node has ended it: it is short of memory or disk, or shuts down.",
}


def _own_status(status: Json, sort: Sort) -> Json:
    """Of Epochal's container; of the first one where none has its name."""
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
            f"The {sort} was killed for its memory (OOMKilled): it and its JVM took more than the pod's limit{size}. "
            f"Give it more: {sort.memory}."
        )
    if disruption := _disruption(status) or _why_failed(status):
        return disruption
    if reason in ("StartError", "ContainerCannotRun"):
        return (
            f"The {sort}'s program cannot be started: {_sentence(ended.get('message'))} Is the image one of Epochal, "
            "with `python` on its PATH?"
        )
    if code == _KILLED:
        return f"The {sort} was killed (SIGKILL), and not for its memory."
    # A driver says it in its log, which is kept.
    return (_sentence(ended.get("message")) or None) if sort is BUILDERS else None


def _why_failed(status: Json) -> str | None:
    """Of the pod as a whole."""
    if (disruption := _disruption(status)) is not None:
        return disruption
    reason, message = status.get("reason"), _sentence(status.get("message"))
    match reason:
        case None:
            return None
        case "Evicted":
            return f"The pod was evicted by its node: {message} Give it what it needs, or free some there."
        case "NodeLost":
            return _NODE_SILENT
        case "Terminated" | "NodeShutdown" | "Shutdown":
            return f"The pod's node was shut down. {message}".rstrip()
        case "DeadlineExceeded":
            return "The pod has an activeDeadlineSeconds, which is over. Remove it from the pod template."
    return f"The pod failed ({reason}): {message}".rstrip(" :")


def _disruption(status: Json) -> str | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = str(condition.get("reason"))
            known = _DISRUPTIONS.get(reason, f"The pod had to go ({reason}).")
            return f"{known} {_sentence(condition.get('message'))}".rstrip()
    return None


def _while_waiting(pod: Json, status: Json, events: Sequence[Json], sort: Sort) -> PodCondition:
    for container in _containers(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason"), _sentence(waiting.get("message"))
        image = container.get("image") or _image_of(pod, container.get("name"))
        if reason == "InvalidImageName":
            cause = f"{image!r} is no name of an image. Correct it in the application's configuration or the settings."
            return PodCondition(Phase.ENDED, cause)
        if reason in _PULLING:
            cause = (
                f"The image {image!r} cannot be pulled ({reason}): {message} Is its name right, does its registry "
                "answer, and has the service account or the pod template the pull secret for it?"
            )
            return PodCondition(Phase.ENDED if reason in _FINAL_PULLING else Phase.WAITING, cause)
        if reason in _NOT_CREATED:
            cause = (
                f"The container {container.get('name')!r} cannot be made ({reason}): {message} Is there each secret "
                "and config map that the pod refers to, and does its image name a user that is not root?"
            )
            return PodCondition(Phase.ENDED, cause)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            cause = (
                f"No node takes the pod ({condition.get('reason')}): {_sentence(condition.get('message'))} Make the "
                f"{sort} smaller ({sort.size}), or add nodes."
            )
            return PodCondition(Phase.WAITING, cause)
    for event in reversed(events):
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            cause = (
                f"A volume of the pod is not there: {_sentence(event.get('message'))} Make what it refers to, or "
                "correct the pod template."
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
    """What a cluster said, as a part of a paragraph; at most some lines of it."""
    text = re.sub(r"\s+", " ", str(message or "")).strip()
    if len(text) > _MESSAGE_CHARACTERS:
        text = f"{text[:_MESSAGE_CHARACTERS].rstrip()} .."
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
