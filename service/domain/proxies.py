"""Proxies whose ``X-Forwarded-For`` is trusted."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from epochal.errors import OptionError

Network = IPv4Network | IPv6Network
_LONGEST = 64
"""Characters of an address with a port."""


def read_trusted_proxies(text: str) -> tuple[Network, ...]:
    """The networks in a list with commas. Raises ``OptionError`` for anything but IP addresses and CIDR networks."""
    return tuple(_network(item.strip()) for item in text.split(",")) if text.strip() else ()


def _network(item: str) -> Network:
    try:
        network = ip_network(item)
    except ValueError as error:
        raise OptionError(
            f"--trusted-proxies: {item!r} is not an IP address or a CIDR network ({error}). "
            "Name proxies by address, such as 10.0.0.7 or 10.42.0.0/16, separated by commas."
        ) from None
    if network.prefixlen == 0:
        raise OptionError(
            f"--trusted-proxies: {item} trusts every address, so that any caller can forge its address. List only the "
            "addresses of the proxies."
        )
    return network


class TrustedProxies:
    """The networks whose proxies append the address of their caller to ``X-Forwarded-For``."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)
        self._is_trusted = lru_cache(maxsize=4096)(self._contains)

    def trusts(self, peer: str) -> bool:
        """Return whether the header of a connection from this address is read."""
        if not self._networks or len(peer) > _LONGEST:
            return False
        address = _address(peer)
        return address is not None and self._is_trusted(address)

    def caller(self, peer: str, values: Iterable[str]) -> str:
        """The right-most address that is not a trusted proxy; ``values``: the headers, in the order of the request.

        Where an entry is not an IP address, the proxy that wrote it counts as the caller; where all are trusted
        proxies, the left-most one.
        """
        caller = peer
        for entry in reversed(",".join(values).split(",")):
            address = _address(entry.strip())
            if address is None:
                return caller
            caller = str(address)
            if not self._is_trusted(address):
                return caller
        return caller

    def _contains(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address without or with a port (``10.0.0.1:80``, ``[::1]:80``); one of IPv4 in the form of IPv6 is one of
    IPv4."""
    if len(text) > _LONGEST or not text.isascii() or "%" in text:
        return None
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:] if port else "0"
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if port and not port.isdigit():
        return None
    try:
        address = ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
