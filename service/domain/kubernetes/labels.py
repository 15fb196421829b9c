"""How pods say whose they are."""

from __future__ import annotations

from epochal.service.domain.ports import DriverName

MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
APPLICATION = "epochal.dev/application"
EXECUTION = "epochal.dev/execution"
ATTEMPT = "epochal.dev/attempt"
DRIVER = "driver"
BUILDER = "builder"
"""The components, and the names of their containers."""
SPARE = "epochal.dev/spare"
"""Of a driver's pod that was begun without an application: ``free``, or ``taken`` when it has one."""
FREE, TAKEN = "free", "taken"
SPARE_PREFIX, BUILDER_PREFIX = "epochal-spare-", "epochal-builder-"
"""Of the names of pods that a control plane keeps."""
SELECTOR = f"{MANAGED_BY}=epochal,{COMPONENT}={DRIVER}"
"""Which pods are drivers."""
BUILDERS = f"{MANAGED_BY}=epochal,{COMPONENT}={BUILDER}"


def labels_of(name: DriverName, application: str) -> dict[str, str]:
    """Of an attempt's driver and its executors; the component is beside it."""
    return {
        MANAGED_BY: "epochal",
        APPLICATION: application,
        EXECUTION: name.execution,
        ATTEMPT: str(name.attempt),
    }
