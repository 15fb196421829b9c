"""Names of services and pods in a cluster's DNS, as lines of a hosts file, computed by pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epochal.testing.servers.process import LOOPBACK

Resource = Mapping[str, Any]
_DOMAIN = "svc.cluster.local"


def host_lines(
    pod: Resource, address: str, services: Sequence[Resource], pods: Sequence[Resource], api: str = LOOPBACK
) -> str:
    """Return the lines for ``pod`` at ``address``. ``api``: the address of the cluster's API.

    A headless service has the addresses of all its pods, and a name for each pod with a host name in it. Any other
    service has the address of its first ready pod, since there is no balancer: its ports are the pods' own.
    """
    namespace = pod["metadata"]["namespace"]
    spec = pod["spec"]
    lines = [f"{LOOPBACK} localhost", f"{api} kubernetes.default.svc kubernetes.default"]
    lines.append(f"{address} {spec.get('hostname') or pod['metadata']['name']}")
    for service in services:
        name, of = service["metadata"]["name"], service["metadata"]["namespace"]
        names = [f"{name}.{of}.{_DOMAIN}", f"{name}.{of}.svc", f"{name}.{of}", *([name] if of == namespace else [])]
        chosen = list(_endpoints(service, pods))
        if not _is_headless(service):
            chosen = chosen[:1]
        for endpoint in chosen:
            lines.append(f"{endpoint['status']['podIP']} {' '.join(names)}")
            host = endpoint["spec"].get("hostname")
            if _is_headless(service) and host and endpoint["spec"].get("subdomain") == name:
                lines.append(f"{endpoint['status']['podIP']} {' '.join(f'{host}.{each}' for each in names)}")
    return "\n".join(lines) + "\n"


def _endpoints(service: Resource, pods: Sequence[Resource]) -> Iterator[Resource]:
    selector = service["spec"].get("selector") or {}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if (
            selector
            and pod["metadata"]["namespace"] == service["metadata"]["namespace"]
            and selector.items() <= labels.items()
            and pod["status"].get("podIP")
            and pod["status"].get("phase") in ("Pending", "Running")
            and (service["spec"].get("publishNotReadyAddresses") or _is_ready(pod))
        ):
            yield pod


def _is_ready(pod: Resource) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _is_headless(service: Resource) -> bool:
    return bool(service["spec"].get("clusterIP") == "None")
