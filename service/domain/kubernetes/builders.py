"""Pods of builders: which pod suits a request, and its manifest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from epochal.driver.orders import CONTROL_PLANES_VARIABLE
from epochal.service.domain.kubernetes.manifest import own_container, pod_defaults, pod_required
from epochal.service.domain.kubernetes.pod_identity import BUILDER, COMPONENT, DRIVER, MANAGED_BY
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.kubernetes.spark import (
    DRIVER_IMAGE,
    IMAGE,
    check_spark_options,
    driver_image,
    driver_memory,
)
from epochal.service.domain.kubernetes.templates import for_container, merged

GRACE_SECONDS = 2
_OF_PODS: Final = (
    IMAGE,
    DRIVER_IMAGE,
    "spark.kubernetes.node.selector.",
    "spark.kubernetes.driver.node.selector.",
    "spark.kubernetes.driverEnv.",
    "spark.kubernetes.driver.secretKeyRef.",
)
_OF_SIZES: Final = ("spark.driver.memory", "spark.kubernetes.memoryOverheadFactor")


@dataclass(frozen=True)
class BuilderPod:
    """``spark``: the application's settings for its driver's pod (image, nodes, variables), which apply to its builder
    as well. ``sized``: including the memory. ``warm``: Spark is started before a request arrives. ``seconds``: maximum
    age of the pod."""

    name: str
    namespace: str
    control_plane: str
    seconds: float
    spark: Mapping[str, str] = field(default_factory=dict)
    sized: bool = False
    warm: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


def needs_own_pod(spark: Mapping[str, str], sized: bool) -> bool:
    """Return whether the application has settings for its pods, so that a pod started for any application is not
    suitable."""
    return any(option.startswith((*_OF_PODS, *_OF_SIZES) if sized else _OF_PODS) for option in spark)


def builder_manifest(pod: BuilderPod, settings: KubernetesSettings) -> dict[str, Any]:
    """The manifest contains no secret, and its service account has no permissions. Raises ``EnvironmentProblem`` for an
    image that is not allowed, ``OptionError`` for options of Spark that an application may not set."""
    check_spark_options(pod.spark)
    driver_image(pod.spark, settings)
    memory = driver_memory(pod.spark, settings.builder_memory) if pod.sized else settings.builder_memory
    resources = {"requests": {"cpu": settings.builder_cpu, "memory": memory}, "limits": {"memory": memory}}
    below = pod_defaults(BUILDER, resources, settings, GRACE_SECONDS)
    template = for_container(settings.template, DRIVER, BUILDER)
    return merged(merged(below, template), _required(pod, settings))


def _required(pod: BuilderPod, settings: KubernetesSettings) -> dict[str, Any]:
    further = {
        **{name: {"value": value} for name, value in pod.variables.items()},
        CONTROL_PLANES_VARIABLE: {"value": pod.control_plane},
    }
    container = {
        **own_container(BUILDER, pod.spark, further, settings),
        "command": ["python", "-m", "epochal.service.runtime.builder.pod"],
        "args": [pod.name, "1" if pod.warm else "0"],
    }
    spec = {
        **pod_required(pod.spark, settings),
        "serviceAccountName": settings.builder_service_account,
        "automountServiceAccountToken": False,
        "activeDeadlineSeconds": int(pod.seconds),
        "containers": [container],
    }
    labels = {MANAGED_BY: "epochal", COMPONENT: BUILDER}
    metadata = {"name": pod.name, "namespace": pod.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
