"""Addresses that nobody means: where a machine asks its cloud about itself, credentials among the answers."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

from epochal.errors import OptionError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA: Final = frozenset(
    ipaddress.ip_address(address) for address in ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
)
"""Where clouds answer a machine's questions on itself that is no link-local address."""
_NAMES: Final = frozenset({"metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"})


def meant_by(address: str) -> Sequence[Address]:
    """The address, and the IPv4 addresses that networks take an IPv6 address for. Raises ``ValueError``."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return [found]
    teredo = found.teredo
    within = (found.ipv4_mapped, found.sixtofour, None if teredo is None else teredo[1])
    return [found, *(each for each in within if each is not None)]


def written(host: str) -> str | None:
    """The address that a host is, in any form that a resolver takes for one (2852039166, 0xa9fea9fe, 169.254.43518);
    ``None``: it is a name."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return str(ipaddress.ip_address(name.partition("%")[0]))
    except ValueError:
        try:
            return socket.inet_ntoa(socket.inet_aton(name))
        except (OSError, UnicodeError):
            return None


def check_server(what: str, host: str) -> None:
    """Raises ``OptionError``, beginning with ``what`` (``kafka.source``), for a host that is a link-local address or a
    metadata service, however it is written. What a name means is not asked: the network has to close that."""
    address = written(host)
    addresses = () if address is None else meant_by(address)
    named = host.lower().rstrip(".") in _NAMES
    if named or any(each.is_link_local or each in METADATA for each in addresses):
        raise OptionError(
            f"{what}: {host!r} is an address of the machine's own link, where clouds answer questions on the machine "
            "and no such server is. Name the server by its host name, or by the address that others reach it at."
        )
