"""Identification of pods: their labels, and the tokens of their service accounts. Pure; the signatures of tokens are
verified before."""

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
"""Values of the label of the component, and names of the containers."""
SPARE = "epochal.dev/spare"
"""Label of a driver's pod that was started without an application: ``free``, or ``taken`` once it has one."""
FREE, TAKEN = "free", "taken"
SPARE_PREFIX, BUILDER_PREFIX = "epochal-spare-", "epochal-builder-"
"""Prefixes of the names of spare pods."""
SELECTOR = f"{MANAGED_BY}=epochal,{COMPONENT}={DRIVER}"
"""Selects the pods of drivers."""
BUILDERS = f"{MANAGED_BY}=epochal,{COMPONENT}={BUILDER}"


def labels_of(name: DriverName, application: str) -> dict[str, str]:
    """Labels of an attempt's driver and its executors; the component label differs."""
    return {
        MANAGED_BY: "epochal",
        APPLICATION: application,
        EXECUTION: name.execution,
        ATTEMPT: str(name.attempt),
    }


@dataclass(frozen=True)
class PodIdentity:
    """A pod and its service account."""

    namespace: str
    name: str
    uid: str
    service_account: str

    @property
    def reference(self) -> str:
        """The reference that its launcher records."""
        return f"{self.namespace}/{self.name}/{self.uid}"


def pod_of(claims: Mapping[str, Any]) -> PodIdentity:
    """Raises ``Unauthenticated`` for a token that is not bound to a pod: it would be valid beyond the pod's life."""
    try:
        own = claims["kubernetes.io"]
        pod, account = own["pod"], own["serviceaccount"]
        parts = (own["namespace"], pod["name"], pod["uid"], account["name"])
    except (KeyError, TypeError):
        raise Unauthenticated("The token was not issued by a cluster for a pod.") from None
    if not all(isinstance(part, str) and part for part in parts):
        raise Unauthenticated("The token does not name its pod.")
    if claims.get("sub") != f"system:serviceaccount:{parts[0]}:{parts[3]}":
        raise Unauthenticated("The claims of the token contradict each other.")
    return PodIdentity(*parts)
