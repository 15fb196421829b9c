"""The orders of a driver in a pod: those of any driver, with what its pod has in place of a machine's folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from epochal.driver.orders import DriverOrders, SpareOrders
from epochal.service.domain.kubernetes.labels import MANAGED_BY, labels_of
from epochal.service.domain.kubernetes.settings import KubernetesSettings
from epochal.service.domain.kubernetes.spark import WORK_FOLDER, executor_settings, executor_template, wants_executors
from epochal.service.domain.ports import DriverName

SPARE_LABELS: Final[Mapping[str, str]] = {MANAGED_BY: "epochal"}
"""Of executors that were started before there was an application."""


def orders_in_a_pod(
    orders: DriverOrders, settings: KubernetesSettings, namespace: str, pod: str | None = None
) -> DriverOrders:
    """``pod``: the name of one that was a spare, and has begun with what :func:`spare_orders` says.

    Raises ``EnvironmentProblem`` for an image that is not allowed (any more).
    """
    work = {"work_directory": Path(WORK_FOLDER)}
    configuration = orders.configuration
    if not wants_executors(configuration.master):
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
    """What a spare begins with, so that an application with this master and these options goes on with it. Raises
    ``EnvironmentProblem`` for an image that is not allowed."""
    if not wants_executors(master):
        return SpareOrders(master=master, spark=dict(spark))
    begun = {**spark, **executor_settings(pod, SPARE_LABELS, spark, settings, namespace)}
    return SpareOrders(master=master, spark=begun, executor_template=executor_template(settings))
