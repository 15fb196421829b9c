"""Whose certificates pods trust when they call a control plane that speaks TLS with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from epochal.service.domain.kubernetes.settings import KubernetesSettings
from epochal.wire.trust import CA_VARIABLE

AUTHORITY_KEY: Final = "ca.crt"
"""In the config map; what distributes authorities in a cluster calls it so."""
_VOLUME = "epochal-authority"
_FOLDER = "/var/run/epochal-authority"


@dataclass(frozen=True)
class Trust:
    """What it adds to a pod; nothing, where the system's authorities are trusted."""

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
