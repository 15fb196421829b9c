"""A network of pods: addresses that pods and this machine reach, and that are not loopback addresses.

All addresses belong to this machine: a ``local`` route makes each address of a range one of its own. Pods therefore
share its ports, and a server listens at the address of its pod. The network is created only if its addresses lead
nowhere else, as in a network namespace of its own: packets to a deleted pod never leave the machine.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network

from epochal.testing.servers.process import ServerUnavailable
from epochal.testing.servers.proxy import TcpProxy
from tests.kit.kubernetes.cluster import KubernetesCluster

# Reserved for network benchmarks (RFC 2544), so that no machine uses it.
_RANGES = tuple(IPv4Network("198.18.0.0/15").subnets(new_prefix=20))
_HTTPS = 443


@dataclass(frozen=True)
class PodNetwork:
    """4096 addresses: 250 for the pods of each of 15 nodes. ``api``: address of the cluster's API, on the usual
    port."""

    addresses: IPv4Network

    @property
    def api(self) -> str:
        return str(self.addresses[1])

    def address(self, node: int, number: int) -> str:
        return str(self.addresses[256 * node + number % 250 + 1])


@contextmanager
def pod_network(cluster: KubernetesCluster) -> Iterator[PodNetwork]:
    """Provide the network during the block.

    Raises ``ServerUnavailable`` if pods' addresses lead to other machines, or if this user may not change routes.
    """
    if _lead_elsewhere():
        raise ServerUnavailable(
            "Pods need their own network namespace, which `make test-kubernetes` creates when root runs it: here their "
            "addresses would lead to other machines."
        )
    network = PodNetwork(_reserved())
    try:
        api = TcpProxy(int(cluster.url.rpartition(":")[2]), network.api, _HTTPS)
        try:
            yield network
        finally:
            api.close()
    finally:
        _route("del", network.addresses)


def _reserved() -> IPv4Network:
    """Reserve the first range that no other cluster uses."""
    error = ""
    for addresses in _RANGES:
        error = _route("add", addresses)
        if not error:
            return addresses
        if "File exists" not in error:
            break
    raise ServerUnavailable(f"A network of pods needs `ip route add local`, which failed: {error}")


def _lead_elsewhere() -> bool:
    """Check whether another interface than loopback would send a packet to a pod."""
    try:
        found = subprocess.run(
            ["ip", "route", "get", str(_RANGES[-1][1])], capture_output=True, text=True, check=False, timeout=30
        )
    except OSError:
        return False  # creating the route reports the error
    return found.returncode == 0 and not found.stdout.startswith("local ")


def _route(do: str, addresses: IPv4Network) -> str:
    """Change a route. Returns the error message, empty after success."""
    command = ["ip", "route", do, "local", str(addresses), "dev", "lo"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "no reason" if done.returncode else ""
