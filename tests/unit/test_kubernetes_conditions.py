"""The meaning of a pod's status: phase, cause and message, for statuses of real clusters."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.errors import EnvironmentProblem
from epochal.service.domain.failures import of_error, permanent
from epochal.service.domain.kubernetes.conditions import BUILDERS, Phase, PodRefused, condition_of, refusal

RESOURCES = {"limits": {"memory": "2Gi"}}
SPEC = {"containers": [{"name": "mesh"}, {"name": "driver", "image": "epochal:1", "resources": RESOURCES}]}


def pod(phase: str, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """``state``: that of the driver's container, which is the second one."""
    containers = [{"name": "mesh", "state": {"running": {}}}, {"name": "driver", "image": "epochal:1", "state": state}]
    if state is not None:
        status["containerStatuses"] = containers
    return {"metadata": {"name": "e-1"}, "spec": SPEC, "status": {"phase": phase, **status}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


UNSCHEDULABLE = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient memory")
PREEMPTED = condition("DisruptionTarget", "True", "PreemptionByScheduler")
TAINTED = condition("DisruptionTarget", "True", "DeletionByTaintManager", "Taint manager: deleting due to NoExecute")


@pytest.mark.parametrize(
    ("found", "phase", "expected"),
    [
        (pod("Pending"), Phase.WAITING, None),
        (pod("Pending", waiting("ContainerCreating")), Phase.WAITING, None),
        (pod("Pending", waiting("PodInitializing")), Phase.WAITING, None),
        (pod("Pending", conditions=[UNSCHEDULABLE]), Phase.WAITING, "3 Insufficient memory. Make the driver smaller"),
        (pod("Pending", waiting("ErrImagePull", "not found")), Phase.WAITING, "cannot be pulled"),
        (pod("Pending", waiting("ImagePullBackOff", "Back-off")), Phase.ENDED, "'epochal:1' cannot be pulled"),
        (pod("Pending", waiting("InvalidImageName")), Phase.ENDED, "not the name of an image"),
        (
            pod("Pending", waiting("CreateContainerConfigError", 'secret "store" not found')),
            Phase.ENDED,
            'secret "store" not found',
        ),
        (
            pod(
                "Pending",
                waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
            ),
            Phase.ENDED,
            "a non-root user",
        ),
        (pod("Running", {"running": {}}), Phase.RUNNING, None),
        (pod("Running", {"running": {}}, conditions=[TAINTED]), Phase.RUNNING, "no longer tolerates it"),
        (pod("Unknown"), Phase.RUNNING, "does not respond"),
        (pod("Running", ended(0, "Completed")), Phase.ENDED, None),
        (pod("Failed", ended(137, "OOMKilled")), Phase.ENDED, "limit of 2Gi"),
        (pod("Failed", ended(137)), Phase.ENDED, "killed (SIGKILL)"),
        (pod("Failed", ended(137), conditions=[PREEMPTED]), Phase.ENDED, "higher priority"),
        (pod("Failed", ended(1, message="see its log")), Phase.ENDED, None),
        (pod("Failed", ended(128, "StartError", "exec: python: not found")), Phase.ENDED, "cannot be started"),
        (pod("Failed", reason="Evicted", message="low on memory"), Phase.ENDED, "low on memory."),
        (pod("Failed", reason="OutOfcpu", message="no cpu"), Phase.ENDED, "(OutOfcpu): no cpu."),
        (pod("Failed", reason="Terminated"), Phase.ENDED, "shut down"),
        (pod("Failed"), Phase.ENDED, None),
        ({}, Phase.WAITING, None),
    ],
)
def test_each_status_has_a_phase_and_a_cause(found: dict[str, Any], phase: Phase, expected: str | None) -> None:
    seen = condition_of(found)
    assert seen.phase is phase
    if expected is None:
        assert seen.cause is None
    else:
        assert seen.cause is not None and expected in seen.cause
        assert seen.cause.endswith((".", "?"))


def test_the_cause_of_an_ended_builder_is_its_termination_message() -> None:
    found = pod("Succeeded", ended(0, "Completed", "The token has expired"))
    found["status"]["containerStatuses"][1]["name"] = "builder"
    assert condition_of(found, sort=BUILDERS).cause == "The token has expired."


@pytest.mark.parametrize(
    ("code", "process_code"), [(0, 0), (1, 1), (3, 3), (137, -9), (143, -15), (128, 128), (None, None)]
)
def test_exit_codes_above_128_are_signals(code: int | None, process_code: int | None) -> None:
    assert condition_of(pod("Failed", {"terminated": {"exitCode": code}})).exit_code == process_code


def test_a_missing_volume_is_reported_from_events() -> None:
    events = [
        {"reason": "Scheduled", "message": "Successfully assigned"},
        {"reason": "FailedMount", "message": 'MountVolume.SetUp failed: secret "keys" not found'},
    ]
    found = condition_of(pod("Pending", waiting("ContainerCreating")), events)
    assert found.phase is Phase.WAITING
    assert found.cause is not None and 'secret "keys" not found' in found.cause


def test_a_failing_init_container_gives_no_exit_code() -> None:
    found = pod("Pending", waiting("PodInitializing"))
    found["status"]["initContainerStatuses"] = [
        {"name": "fetch", "image": "none:1", "state": waiting("ImagePullBackOff")}
    ]
    seen = condition_of(found)
    assert (seen.phase, seen.exit_code) == (Phase.ENDED, None)
    assert seen.cause is not None and "'none:1'" in seen.cause


REFUSALS = [
    (403, 'pods "e-1" is forbidden: exceeded quota: small, requested: memory=2Gi', "quota", False),
    (403, 'pods is forbidden: User "system:serviceaccount:a:b" cannot create resource "pods"', "may not start", False),
    (403, 'pods "e-1" is forbidden: violates PodSecurity "restricted:latest": ..', "pod template", True),
    (
        403,
        'pods "e-1" is forbidden: error looking up service account a/b: serviceaccount "b" not found',
        "missing",
        False,
    ),
    (403, "unable to create new content in namespace a because it is being terminated", "being deleted", False),
    (404, 'namespaces "a" not found', "no namespace", False),
    (401, "Unauthorized", "may not start", False),
    (422, 'Pod "e-1" is invalid: spec.containers[0].image: Required value', "pod template", True),
    (500, "etcdserver: request timed out", "HTTP status 500", False),
]


@pytest.mark.parametrize(("status", "message", "expected", "is_permanent"), REFUSALS)
def test_error_messages_name_the_fix_and_whether_the_error_is_permanent(
    status: int, message: str, expected: str, is_permanent: bool
) -> None:
    error = refusal(status, message, "team-a")
    assert isinstance(error, EnvironmentProblem if is_permanent else PodRefused)
    assert expected in error.message
    assert permanent(of_error(error)) is is_permanent
