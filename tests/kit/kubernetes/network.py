"""A network of pods: addresses that pods and this machine reach, and that are no loopback ones.

They all belong to this machine: a route of the kind ``local`` makes each address of a range one of its own. So pods
share its ports: whoever listens does so at the address of its pod. It is made only where such an address leads nowhere
else, as in a network namespace of its own: what is sent to a pod that has gone never leaves the machine.
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

# Set aside for measuring networks (RFC 2544), so that no machine has it.
_RANGES = tuple(IPv4Network("198.18.0.0/15").subnets(new_prefix=20))
_HTTPS = 443


@dataclass(frozen=True)
class PodNetwork:
    """4096 addresses: 250 for the pods of each of 15 nodes; at ``api`` is the cluster's API, on the usual port."""

    addresses: IPv4Network

    @property
    def api(self) -> str:
        return str(self.addresses[1])

    def address(self, node: int, number: int) -> str:
        return str(self.addresses[256 * node + number % 250 + 1])


@contextmanager
def pod_network(cluster: KubernetesCluster) -> Iterator[PodNetwork]:
    """For as long as the block lasts. Raises ``ServerUnavailable`` where pods' addresses lead to other machines, and
    where this user may not change routes."""
    if _lead_elsewhere():
        raise ServerUnavailable(
            "Pods have a network in a network namespace of its own, which `make test-kubernetes` makes where it is run "
            "by root: here their addresses would lead to other machines."
        )
    network = PodNetwork(_taken())
    try:
        api = TcpProxy(int(cluster.url.rpartition(":")[2]), network.api, _HTTPS)
        try:
            yield network
        finally:
            api.close()
    finally:
        _route("del", network.addresses)


def _taken() -> IPv4Network:
    """The first range that no other cluster has."""
    said = ""
    for addresses in _RANGES:
        said = _route("add", addresses)
        if not said:
            return addresses
        if "File exists" not in said:
            break
    raise ServerUnavailable(f"A network of pods needs `ip route add local`, which this machine does not do: {said}")


def _lead_elsewhere() -> bool:
    """Whether a packet to some pod would be sent by another interface than loopback's."""
    try:
        found = subprocess.run(
            ["ip", "route", "get", str(_RANGES[-1][1])], capture_output=True, text=True, check=False, timeout=30
        )
    except OSError:
        return False  # said when there is to be a route
    return found.returncode == 0 and not found.stdout.startswith("local ")


def _route(do: str, addresses: IPv4Network) -> str:
    """What is said against it; nothing where it is done."""
    command = ["ip", "route", do, "local", str(addresses), "dev", "lo"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "no reason" if done.returncode else ""
