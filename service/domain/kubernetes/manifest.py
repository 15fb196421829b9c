"""The manifest of a driver's pod, from its orders and the settings. It contains no secret: the driver fetches its
orders with a token that the cluster issues for its pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from epochal.driver.orders import ADDRESS_VARIABLE, CONTROL_PLANES_VARIABLE, FETCH, SPARE_POD, TOKEN_FILE_VARIABLE
from epochal.errors import OptionError
from epochal.service.domain.executions import DriverName
from epochal.service.domain.kubernetes.pod_identity import COMPONENT, DRIVER, FREE, MANAGED_BY, SPARE, labels_of
from epochal.service.domain.kubernetes.pod_settings import AUDIENCE, KubernetesSettings
from epochal.service.domain.kubernetes.spark import (
    check_spark_options,
    driver_image,
    driver_memory,
    executor_image,
    restricted_container,
    restricted_pod,
    scratch_mounts,
    scratch_variables,
    scratch_volumes,
    starts_executors,
    store_secret,
)
from epochal.service.domain.kubernetes.templates import merged
from epochal.wire.trust import CA_VARIABLE

TOKEN_FOLDER = "/var/run/secrets/epochal"
_TOKEN_VOLUME = "epochal-token"

_LABEL: Final = "spark.kubernetes.driver.label."
_ANNOTATION: Final = "spark.kubernetes.driver.annotation."
_VARIABLE: Final = "spark.kubernetes.driverEnv."
_SECRET: Final = "spark.kubernetes.driver.secretKeyRef."
_NODES: Final = ("spark.kubernetes.node.selector.", "spark.kubernetes.driver.node.selector.")


@dataclass(frozen=True)
class DriverPod:
    """Inputs of a driver's manifest. ``control_planes``: where it fetches its orders. ``variables``: additional
    environment variables without secrets."""

    name: DriverName
    application: str
    master: str
    spark: Mapping[str, str]
    namespace: str
    control_planes: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def pod_name(self) -> str:
        return str(self.name)

    @property
    def own_labels(self) -> Mapping[str, str]:
        return labels_of(self.name, self.application)

    @property
    def arguments(self) -> Sequence[str]:
        return FETCH, self.pod_name


@dataclass(frozen=True)
class SparePod:
    """A driver's pod without application: the pod of an application with these settings of Spark and of pods."""

    pod_name: str
    master: str
    spark: Mapping[str, str]
    namespace: str
    control_planes: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_labels(self) -> Mapping[str, str]:
        return {MANAGED_BY: "epochal", SPARE: FREE}

    @property
    def arguments(self) -> Sequence[str]:
        return SPARE_POD, self.pod_name


def driver_manifest(pod: DriverPod | SparePod, settings: KubernetesSettings) -> dict[str, Any]:
    """Raises ``EnvironmentProblem`` for an image that is not allowed, ``OptionError`` for options of Spark that an
    application may not set."""
    check_spark_options(pod.spark)
    if starts_executors(pod.master):
        executor_image(pod.spark, settings)  # refused here, so that the driver does not wait for a node first
    below = pod_defaults(DRIVER, _resources(pod.spark, settings), settings, settings.grace_seconds)
    return merged(merged(below, settings.template), _required(pod, settings))


def pod_defaults(
    container: str, resources: Mapping[str, Any], settings: KubernetesSettings, grace_seconds: int
) -> dict[str, Any]:
    """Values that a template may override, of each pod with this single container."""
    own = {
        "name": container,
        "imagePullPolicy": settings.pull_policy,
        "resources": resources,
        "securityContext": restricted_container(),
        "volumeMounts": scratch_mounts(),
        "env": scratch_variables(),
    }
    spec = {
        "securityContext": restricted_pod(),
        "terminationGracePeriodSeconds": grace_seconds,
        "containers": [own],
        "volumes": scratch_volumes(),
    }
    return {"spec": spec}


def pod_required(spark: Mapping[str, str], settings: KubernetesSettings) -> dict[str, Any]:
    """Values of ``spec`` that no template overrides, of each pod, besides its service account and container."""
    selected = {name: value for nodes in _NODES for name, value in _options(spark, nodes).items()}
    return {
        "restartPolicy": "Never",  # the control plane decides on restarts
        "enableServiceLinks": False,
        "volumes": [_token_volume(settings), *trust_of(settings).volumes],
        **({"nodeSelector": selected} if selected else {}),
    }


def own_container(
    name: str, spark: Mapping[str, str], further: Mapping[str, Any], settings: KubernetesSettings
) -> dict[str, Any]:
    """The container of a pod that fetches its orders from a control plane. ``further``: environment variables that
    override the application's, in the form of a manifest. Raises ``EnvironmentProblem`` for an image that is not
    allowed."""
    variables: dict[str, dict[str, Any]] = {
        **{name: {"value": value} for name, value in settings.store_variables.items()},
        **{name: {"value": value} for name, value in _options(spark, _VARIABLE).items()},
        **{name: _secret(name, reference) for name, reference in _options(spark, _SECRET).items()},
        **{name: {"value": value} for name, value in trust_of(settings).variables},
        **further,
        TOKEN_FILE_VARIABLE: {"value": f"{TOKEN_FOLDER}/token"},
    }
    return {
        "name": name,
        "image": driver_image(spark, settings),
        "env": [{"name": name, **value} for name, value in variables.items()],
        **store_secret(settings),
        "volumeMounts": [
            {"name": _TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True},
            *trust_of(settings).mounts,
        ],
    }


def _resources(spark: Mapping[str, str], settings: KubernetesSettings) -> dict[str, Any]:
    cpu = spark.get("spark.kubernetes.driver.request.cores") or spark.get("spark.driver.cores") or settings.cpu
    limit = spark.get("spark.kubernetes.driver.limit.cores")
    memory = driver_memory(spark, settings.memory)
    return {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"memory": memory} | ({} if limit is None else {"cpu": limit}),
    }


def _required(pod: DriverPod | SparePod, settings: KubernetesSettings) -> dict[str, Any]:
    spec = {
        **pod_required(pod.spark, settings),
        "serviceAccountName": settings.service_account,
        # Only pods that start other pods use the cluster's API.
        "automountServiceAccountToken": starts_executors(pod.master),
        "containers": [_driver(pod, settings)],
    }
    labels = {**_options(pod.spark, _LABEL), **pod.own_labels, COMPONENT: DRIVER}
    metadata = {"name": pod.pod_name, "namespace": pod.namespace, "labels": labels}
    if annotations := _options(pod.spark, _ANNOTATION):
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _driver(pod: DriverPod | SparePod, settings: KubernetesSettings) -> dict[str, Any]:
    further: dict[str, dict[str, Any]] = {
        **{name: {"value": value} for name, value in pod.variables.items()},
        CONTROL_PLANES_VARIABLE: {"value": " ".join(pod.control_planes)},
        ADDRESS_VARIABLE: {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    }
    return {
        **own_container(DRIVER, pod.spark, further, settings),
        "command": ["python", "-m", "epochal.driver"],
        "args": [*pod.arguments],
    }


def _token_volume(settings: KubernetesSettings) -> dict[str, Any]:
    token = {"audience": AUDIENCE, "expirationSeconds": settings.token_seconds, "path": "token"}
    return {"name": _TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}


def _options(spark: Mapping[str, str], beginning: str) -> dict[str, str]:
    """Options with this prefix, by the rest of their names."""
    return {option.removeprefix(beginning): value for option, value in spark.items() if option.startswith(beginning)}


def _secret(variable: str, reference: str) -> dict[str, Any]:
    name, _, key = reference.partition(":")
    if not name or not key:
        raise OptionError(
            f"configuration.spark: {_SECRET}{variable} is {reference!r}; give the name of a secret of the "
            "project's namespace, a colon, and the key in it."
        )
    return {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


AUTHORITY_KEY: Final = "ca.crt"
"""Key in the config map, as used by tools that distribute authorities in a cluster."""
_VOLUME = "epochal-authority"
_FOLDER = "/var/run/epochal-authority"


@dataclass(frozen=True)
class Trust:
    """Additions to a pod for the trusted authority; empty if the system's authorities are trusted."""

    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


def trust_of(settings: KubernetesSettings) -> Trust:
    if settings.authority is None:
        return Trust()
    source = {"name": settings.authority, "items": [{"key": AUTHORITY_KEY, "path": AUTHORITY_KEY}]}
    return Trust(
        volumes=({"name": _VOLUME, "configMap": source},),
        mounts=({"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True},),
        variables=((CA_VARIABLE, f"{_FOLDER}/{AUTHORITY_KEY}"),),
    )
