"""The orders of a driver in a pod: those of any driver, with what its pod has in place of a machine's folders."""

from __future__ import annotations

from pathlib import Path

from epochal.driver.orders import DriverOrders
from epochal.service.domain.kubernetes.labels import labels_of
from epochal.service.domain.kubernetes.settings import KubernetesSettings
from epochal.service.domain.kubernetes.spark import WORK_FOLDER, executor_settings, executor_template, wants_executors
from epochal.service.domain.ports import DriverName


def orders_in_a_pod(orders: DriverOrders, settings: KubernetesSettings, namespace: str) -> DriverOrders:
    """Raises ``EnvironmentProblem`` for an image that is not allowed (any more)."""
    work = {"work_directory": Path(WORK_FOLDER)}
    configuration = orders.configuration
    if not wants_executors(configuration.master):
        return orders.model_copy(update=work)
    name = DriverName(orders.execution, orders.attempt)
    labels = labels_of(name, orders.application)
    spark = configuration.spark | executor_settings(name, labels, configuration.spark, settings, namespace)
    changed = {
        "configuration": configuration.model_copy(update={"spark": spark}),
        "executor_template": executor_template(settings),
    }
    return orders.model_copy(update={**work, **changed})
