"""How pods say whose they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochal.errors import Unauthenticated
from epochal.service.domain.executions import DriverName

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


@dataclass(frozen=True)
class PodIdentity:
    """A pod, and the service account that it runs as."""

    namespace: str
    name: str
    uid: str
    service_account: str

    @property
    def reference(self) -> str:
        """As its launcher writes it down."""
        return f"{self.namespace}/{self.name}/{self.uid}"


def pod_of(claims: Mapping[str, Any]) -> PodIdentity:
    """Raises ``Unauthenticated`` for a token that is bound to no pod: it would outlive whoever has it."""
    try:
        own = claims["kubernetes.io"]
        pod, account = own["pod"], own["serviceaccount"]
        parts = (own["namespace"], pod["name"], pod["uid"], account["name"])
    except (KeyError, TypeError):
        raise Unauthenticated("The token is not one that a cluster has made for a pod.") from None
    if not all(isinstance(part, str) and part for part in parts):
        raise Unauthenticated("The token does not say which pod it was made for.")
    if claims.get("sub") != f"system:serviceaccount:{parts[0]}:{parts[3]}":
        raise Unauthenticated("The token says two things of whom it was made for.")
    return PodIdentity(*parts)
