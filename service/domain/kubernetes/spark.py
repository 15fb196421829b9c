"""Settings of Spark and orders of drivers in pods: client mode, with executors in pods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from epochal.driver.orders import DriverOrders, SpareOrders
from epochal.errors import EnvironmentProblem, OptionError
from epochal.service.domain.executions import DriverName
from epochal.service.domain.kubernetes.pod_identity import MANAGED_BY, labels_of
from epochal.service.domain.kubernetes.pod_settings import KubernetesSettings
from epochal.service.domain.kubernetes.templates import merged

MASTER = "k8s://https://kubernetes.default.svc"
"""The cluster of the driver's pod."""
DRIVER_PORT, BLOCK_MANAGER_PORT = 7078, 7079
"""Fixed ports at which executors reach the driver, for network policies."""
WORK_FOLDER = "/var/lib/epochal/work"
"""Scratch space of drivers and executors, deleted with the pod."""
TEMPLATE_FILE = f"{WORK_FOLDER}/executor-template.json"
EXECUTOR = "executor"

_EXECUTOR_LABEL: Final = "spark.kubernetes.executor.label."
_DECIDED_BY_THE_LAUNCHER: Final = (
    "spark.kubernetes.namespace",
    "spark.kubernetes.context",
    "spark.kubernetes.authenticate.",
    "spark.kubernetes.driver.master",
    "spark.kubernetes.driver.pod.",
    "spark.kubernetes.driver.podTemplate",
    "spark.kubernetes.driver.volumes.",
    "spark.kubernetes.driver.secrets.",
    "spark.kubernetes.executor.podTemplate",
    "spark.kubernetes.executor.podNamePrefix",
    "spark.kubernetes.executor.disableConfigMap",
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.driver.port",
    "spark.driver.blockManager.port",
    "spark.authenticate",
    "spark.network.crypto.",
    "spark.submit.deployMode",
)
_MEMORY: Final = re.compile(r"([0-9]+)([kmgtp]?)b?", re.IGNORECASE)
_MEBIBYTES: Final = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2, "p": 1024**3}
_LEAST_OVERHEAD = 384
_OVERHEAD_SHARE = 0.4


def starts_executors(master: str) -> bool:
    """Return whether the driver starts pods of executors. Otherwise Spark runs in its process, or in another
    cluster."""
    return master.startswith("k8s://")


def check_spark_options(spark: Mapping[str, str]) -> None:
    """Raises ``OptionError`` for options that the launcher sets."""
    for option in sorted(spark):
        if any(option == decided or option.startswith(decided) for decided in _DECIDED_BY_THE_LAUNCHER):
            raise OptionError(
                f"configuration.spark: {option} is set by the control plane for drivers in pods. Leave it out; use"
                " pod templates for other properties of pods."
            )


def executor_settings(
    driver: str, labels: Mapping[str, str], spark: Mapping[str, str], settings: KubernetesSettings, namespace: str
) -> dict[str, str]:
    """Options that override the author's, except the driver's address, which its pod, ``driver``, adds.

    Executors belong to the driver's pod and are deleted with it. Their communication is encrypted, with a secret that
    Spark creates for each driver.
    """
    return {
        "spark.submit.deployMode": "client",
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.driver.pod.name": driver,
        "spark.kubernetes.executor.podNamePrefix": driver,
        "spark.kubernetes.executor.container.image": executor_image(spark, settings),
        "spark.kubernetes.container.image.pullPolicy": settings.pull_policy,
        "spark.kubernetes.executor.podTemplateFile": TEMPLATE_FILE,
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR,
        # The driver passes the configuration to executors, so no permission on config maps is needed.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.authenticate.executor.serviceAccountName": settings.executor_service_account,
        **{_EXECUTOR_LABEL + label: value for label, value in labels.items()},
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
    }


def executor_template(settings: KubernetesSettings) -> dict[str, Any]:
    """The pod template of executors: restricted, and without a token."""
    below = {
        "spec": {"securityContext": restricted_pod(), "containers": [_executor(settings)], "volumes": scratch_volumes()}
    }
    above = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [
                {"name": EXECUTOR, "command": ["python", "-m", "epochal.driver.executor"], **store_secret(settings)}
            ],
        },
    }
    return merged(merged(below, settings.executor_template), above)


def store_secret(settings: KubernetesSettings) -> dict[str, Any]:
    """The part of a container by which the cluster, not the control plane, sets the variables of the store's Secret."""
    return {} if settings.store_secret is None else {"envFrom": [{"secretRef": {"name": settings.store_secret}}]}


def _executor(settings: KubernetesSettings) -> dict[str, Any]:
    store = [{"name": name, "value": value} for name, value in settings.store_variables.items()]
    return {
        "name": EXECUTOR,
        "securityContext": restricted_container(),
        "volumeMounts": scratch_mounts(),
        "env": [*scratch_variables(), *store],
    }


def restricted_pod() -> dict[str, Any]:
    """Requirements of Pod Security level ``restricted`` for a pod."""
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_container() -> dict[str, Any]:
    """Requirements of that level for a container, and a read-only image."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def scratch_volumes() -> list[dict[str, Any]]:
    return [{"name": "work", "emptyDir": {}}, {"name": "temporary", "emptyDir": {}}]


def scratch_mounts() -> list[dict[str, Any]]:
    return [{"name": "work", "mountPath": WORK_FOLDER}, {"name": "temporary", "mountPath": "/tmp"}]


def scratch_variables() -> list[dict[str, Any]]:
    """Writable folders, as the image is read-only and its user may have no home."""
    variables = {"HOME": WORK_FOLDER, "SPARK_LOCAL_DIRS": f"{WORK_FOLDER}/spark", "PYTHONUNBUFFERED": "1"}
    return [{"name": name, "value": value} for name, value in variables.items()]


def mebibytes(text: str) -> int:
    """An amount of memory in Spark's notation: ``2g``, ``512m``, ``1024`` (MiB). Raises ``OptionError``."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise OptionError(f"configuration.spark: {text!r} is not an amount of memory; write 2g or 512m.")
    return int(int(found[1]) * _MEBIBYTES[found[2].lower()])


def driver_memory(spark: Mapping[str, str], default: str) -> str:
    """Memory of a driver's pod: the heap of the JVM and the overhead for Python and other memory, as Spark computes it
    for Python programs."""
    heap = spark.get("spark.driver.memory")
    if heap is None:
        return default
    overhead = spark.get("spark.driver.memoryOverhead")
    if overhead is not None:
        return f"{mebibytes(heap) + mebibytes(overhead)}Mi"
    share = _share(spark.get("spark.driver.memoryOverheadFactor") or spark.get("spark.kubernetes.memoryOverheadFactor"))
    return f"{mebibytes(heap) + max(int(mebibytes(heap) * share), _LEAST_OVERHEAD)}Mi"


def _share(text: str | None) -> float:
    try:
        return _OVERHEAD_SHARE if text is None else float(text)
    except ValueError:
        raise OptionError(f"configuration.spark: {text!r} is not a share of memory; write 0.4.") from None


IMAGE = "spark.kubernetes.container.image"
DRIVER_IMAGE = "spark.kubernetes.driver.container.image"
EXECUTOR_IMAGE = "spark.kubernetes.executor.container.image"


def driver_image(spark: Mapping[str, str], settings: KubernetesSettings) -> str:
    """Raises ``EnvironmentProblem`` for an image that is not allowed."""
    return _allowed(spark.get(DRIVER_IMAGE) or spark.get(IMAGE) or settings.image, settings)


def executor_image(spark: Mapping[str, str], settings: KubernetesSettings) -> str:
    """Raises ``EnvironmentProblem`` for an image that is not allowed."""
    return _allowed(spark.get(EXECUTOR_IMAGE) or spark.get(IMAGE) or settings.image, settings)


def _allowed(image: str, settings: KubernetesSettings) -> str:
    if any(_pattern(allowed).fullmatch(image) for allowed in (settings.image, *settings.images)):
        return image
    allowed = ", ".join((settings.image, *settings.images))
    raise EnvironmentProblem(
        f"The image {image!r} is not among those that applications may run: {allowed}. Choose one of them in the "
        "application's configuration, or have an administrator add it to `images`."
    )


def _pattern(allowed: str) -> re.Pattern[str]:
    """``*`` matches characters within one path component of a name, so that it cannot match another registry or
    folder."""
    return re.compile("[^/]*".join(map(re.escape, allowed.split("*"))))


SPARE_LABELS: Final[Mapping[str, str]] = {MANAGED_BY: "epochal"}
"""Labels of executors that were started without an application."""


def orders_in_a_pod(
    orders: DriverOrders, settings: KubernetesSettings, namespace: str, pod: str | None = None
) -> DriverOrders:
    """The orders of a driver in a pod: those of any driver, with the pod's folders and executors. ``pod``: the name of
    a former spare, which began with the values of :func:`spare_orders`.

    Raises ``EnvironmentProblem`` for an image that is not allowed.
    """
    work = {"work_directory": Path(WORK_FOLDER)}
    configuration = orders.configuration
    if not starts_executors(configuration.master):
        return orders.model_copy(update=work)
    name = DriverName(orders.execution, orders.attempt)
    labels: Mapping[str, str] = labels_of(name, orders.application)
    if pod is not None and pod != str(name):
        labels = SPARE_LABELS
    spark = configuration.spark | executor_settings(pod or str(name), labels, configuration.spark, settings, namespace)
    changed = {
        "configuration": configuration.model_copy(update={"spark": spark}),
        "executor_template": executor_template(settings),
    }
    return orders.model_copy(update={**work, **changed})


def spare_orders(
    master: str, spark: Mapping[str, str], settings: KubernetesSettings, namespace: str, pod: str
) -> SpareOrders:
    """Orders of a spare that suits an application with this master and these options. Raises ``EnvironmentProblem`` for
    an image that is not allowed."""
    if not starts_executors(master):
        return SpareOrders(master=master, spark=dict(spark))
    begun = {**spark, **executor_settings(pod, SPARE_LABELS, spark, settings, namespace)}
    return SpareOrders(master=master, spark=begun, executor_template=executor_template(settings))
