"""Hosts and addresses: which mean this machine, and where the control plane lets itself be sent to by its callers."""

from __future__ import annotations

import ipaddress

from epochal.errors import InvalidInput


def check_address(address: str) -> None:
    """Raises ``InvalidInput`` for an address of this machine, of its link (metadata services of clouds), or of none."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    meant = mapped or found
    if meant.is_loopback or meant.is_link_local or meant.is_unspecified or meant.is_multicast or meant.is_reserved:
        raise InvalidInput(
            f"{meant} is an address of the control plane's own machine or link, where nothing is delivered to. "
            "If that is meant, start the control plane with EPOCHAL_WEBHOOKS_LOCAL=1."
        )


def check_host(host: str) -> None:
    """As :func:`check_address`, where the host is an address or means this machine; names are not resolved."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        check_address("127.0.0.1")
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return
    check_address(name)


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
