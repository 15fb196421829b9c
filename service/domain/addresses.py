"""Addresses that the control plane must not connect to on behalf of callers, and those that denote this machine."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

import psutil

from epochal.addresses import (
    METADATA_NAMES,
    Address,
    addresses_of,
    is_link_or_metadata,
    is_loopback,
    spellings,
    with_embedded,
)
from epochal.errors import InvalidInput

_THIS_NETWORK: Final = ipaddress.IPv4Network("0.0.0.0/8")
_OF_NO_MACHINE: Final = {4: "240.0.0.1", 6: "100::1"}
"""Reserved and discard-only addresses."""


def check_address(address: str) -> None:
    """Raises ``InvalidInput`` for an address of this machine or its link, a metadata service, a reserved, unspecified
    or multicast address, and one that a gateway or tunnel translates to such an address. Reads the interfaces of the
    machine at each call. Raises ``ValueError`` for other text."""
    found = with_embedded(ipaddress.ip_address(address))
    reserved = len(found) == 1 and found[0].is_reserved  # the prefixes that embed addresses are reserved themselves
    for each in found:
        if (
            reserved
            or each.is_loopback
            or each.is_unspecified
            or each.is_multicast
            or (isinstance(each, ipaddress.IPv4Address) and (each.is_reserved or each in _THIS_NETWORK))
            or is_link_or_metadata(each)
            or is_of_this_machine(each)
        ):
            raise InvalidInput(
                f"{each} is an address of the control plane's own machine or link, or a reserved one: nothing is "
                "delivered there. To allow it, start the control plane with EPOCHAL_WEBHOOKS_LOCAL=1."
            )


def check_host(host: str) -> None:
    """:func:`check_address` for a host that is an address, in any spelling; raises ``InvalidInput`` for names of this
    machine and of metadata services, too. Other names are not resolved."""
    try:
        names, addresses = spellings(host), addresses_of(host)
    except ValueError as error:
        raise InvalidInput(f"{host!r} is not a valid host: {error}.") from None
    for name in names:
        if name == "localhost" or name.endswith(".localhost"):
            check_address("127.0.0.1")
        if name in METADATA_NAMES:
            check_address("169.254.169.254")
    for address in addresses:
        check_address(str(address))


def is_of_this_machine(address: Address) -> bool:
    """Return whether this machine receives what is sent to the address now: an interface has it, or a local route leads
    to it.

    The kernel decides: a socket can be bound to such addresses only, unless the machine allows any
    (``net.ipv4.ip_nonlocal_bind``); the interfaces are then listed. Raises ``OSError`` when no socket can be opened.
    """
    if not _can_be_bound(str(address), address.version):
        return False
    return not _can_be_bound(_OF_NO_MACHINE[address.version], address.version) or str(address) in _of_interfaces()


def _can_be_bound(address: str, version: int) -> bool:
    try:
        with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL):
            return False
        raise
    return True


def _of_interfaces() -> set[str]:
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        each.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family in families
    }


def check_encrypted(url: str) -> None:
    """Raises ``ValueError`` for a URL whose answers could be forged in transit: any except https, or on this
    machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL ({error})") from None
    if not host or parts.scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is not an https URL")
    if parts.username is not None or parts.fragment:
        raise ValueError(f"{host}: the URL of an issuer has neither user nor fragment")
    if parts.scheme == "http" and not is_loopback(host):
        raise ValueError(f"{url!r} is not https: an attacker on the way to {host} could answer in its place")
