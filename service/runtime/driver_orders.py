"""The orders of a driver: written by its launcher or, for a driver in a pod, returned to the pod on request."""

from __future__ import annotations

from epochal.driver.orders import ArtifactOrder, DriverOrders
from epochal.service.domain.executions import LaunchPlan
from epochal.service.domain.nodes import driver_urls
from epochal.service.domain.settings import Settings
from epochal.service.runtime.machine import Machine


def orders_of(plan: LaunchPlan, attempt: int, token: str, settings: Settings, here: Machine) -> DriverOrders:
    """Orders of a driver on the machine ``here`` with the token ``token``."""
    return DriverOrders(
        control_planes=driver_urls(plan.nodes, settings.internal_url, here),
        token=token,
        execution=plan.execution,
        attempt=attempt,
        application=plan.application,
        artifact=ArtifactOrder(sha256=plan.artifact, filename=plan.filename),
        parameters=plan.parameters,
        configuration=plan.configuration,
        version=plan.version,
        by=plan.by,
        message=plan.message,
        acceptance=plan.acceptance,
        shadow=plan.shadow,
        available_now=plan.available_now,
        drain=plan.drain,
        store=settings.store_url,
        work_directory=settings.work_directory / plan.execution,
    )
