"""Which pod a token of a service account was made for, by its claims. Pure: that it is good is found out before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochal.errors import Unauthenticated


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
