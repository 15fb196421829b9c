"""Network addresses: spellings of hosts, the addresses that they denote, and the addresses that connectors refuse.

A resolver, an HTTP library and a network accept many spellings of one address. Checks compare addresses, never texts:
:func:`spellings` maps a host to what a resolver reads, :func:`addresses_of` parses it, and :func:`with_embedded` adds
the IPv4 addresses to which networks translate an IPv6 address.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final
from urllib.parse import unquote

import idna

from epochal.errors import OptionError

Address = IPv4Address | IPv6Address

METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            "100.100.100.200",  # Alibaba Cloud
            "168.63.129.16",  # Azure
            "192.0.0.192",  # Oracle Cloud
            "fd00:42::42",  # Scaleway
            "fd00:ec2::23",  # AWS, credentials of pods
            "fd00:ec2::254",  # AWS
            "fd20:ce::254",  # Google Cloud
        ),
    )
)
"""Metadata services of clouds outside the link-local ranges."""
METADATA_NAMES: Final = frozenset(
    {
        "instance-data",
        "instance-data.ec2.internal",
        "metadata",
        "metadata.azure.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.tencentyun.com",
        "rancher-metadata",
    }
)

_IPV4_AT_THE_END: Final = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
"""IPv4-compatible, IPv4-mapped, IPv4-translated (RFC 2765), and NAT64's well-known prefix."""
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
_BEFORE_GAP: Final = 64
_IPV4_BITS: Final = 0xFFFF_FFFF
_THIS_NETWORK: Final = 1 << 24
"""Embedded values below it are 0.0.0.0/8: part of an IPv6 address such as ``::1``, and not an IPv4 address."""

_JOINERS: Final = {ord(each): None for each in "\u200c\u200d\u2060\ufeff"}
"""Characters that Python's resolver removes from a host name."""
_NOT_IN_A_HOST: Final = re.compile(r"[\s@/\\?#,\x00-\x1f\x7f\ufffd]")
_MAX_ENCODINGS: Final = 4
_SCHEME_AND_AUTHORITY: Final = re.compile(r"([A-Za-z][\w+.-]*)://((?:\[[^\]]*\]|:(?!:)|[^/?#\\:])*)")
_OBJECT_STORES: Final = frozenset(
    {"s3", "s3a", "s3n", "gs", "gcs", "az", "adl", "abfs", "abfss", "wasb", "wasbs", "oss", "oci", "cos", "obs", "hf"}
)
"""Schemes whose authority is a bucket, not a host."""
_LOCAL: Final = frozenset({"file", "local", "memory", "zip", "tar"})


def spellings(host: str) -> Sequence[str]:
    """``host`` as resolvers read it, and each percent-decoding of it: mapped per UTS 46 (full-width digits, ideographic
    full stops), in lower case, without brackets and trailing dots. Raises ``ValueError`` for an invalid host."""
    found = [_mapped(host)]
    while (decoded := _mapped(unquote(found[-1]))) != found[-1]:
        if len(found) > _MAX_ENCODINGS:
            raise ValueError(f"it is percent-encoded more than {_MAX_ENCODINGS} times")
        found.append(decoded)
    # The zone of an IPv6 address follows a percent sign, and is not checked.
    name = found[-1].partition("%")[0]
    if not name or _NOT_IN_A_HOST.search(name) or (":" in name and not _is_ipv6(name)):
        raise ValueError("it is empty, or has characters that no host name has")
    return found


def _mapped(text: str) -> str:
    if not text.isascii():
        text = idna.uts46_remap(text.translate(_JOINERS), std3_rules=False)
    return text.strip().lower().removeprefix("[").rstrip(".").removesuffix("]").rstrip(".")


def addresses_of(host: str) -> Sequence[Address]:
    """The addresses that ``host`` denotes without a look-up, in any form that ``inet_aton`` accepts (2852039166,
    0xa9fea9fe, 169.254.43518), and those that they embed. Empty for a name. Raises ``ValueError`` as
    :func:`spellings`."""
    return [each for spelling in spellings(host) for found in _parsed(spelling) for each in with_embedded(found)]


def _parsed(name: str) -> Iterator[Address]:
    with suppress(ValueError):
        yield ipaddress.ip_address(name.partition("%")[0])
        return
    with suppress(OSError, ValueError):
        yield IPv4Address(socket.inet_aton(name))
    # Leading zeros mean octal for inet_aton; other parsers ignore them.
    parts = name.split(".")
    with suppress(ValueError):
        yield IPv4Address(".".join(part.lstrip("0") or "0" for part in parts))


def with_embedded(address: Address) -> Sequence[Address]:
    """The address, and the IPv4 addresses to which gateways and tunnels translate it."""
    if isinstance(address, IPv4Address):
        return [address]
    bits = int(address)
    values: list[int] = []
    if any(address in network for network in _IPV4_AT_THE_END) or bits >> 32 & _IPV4_BITS in _ISATAP:
        values = [bits & _IPV4_BITS]
    elif address in _LOCAL_NAT64:
        values = [_embedded_after(prefix, bits) for prefix in (48, 56, 64, 96)]
    found = [IPv4Address(value) for value in values if value >= _THIS_NETWORK]
    tunnels = (address.sixtofour, *(address.teredo or ()))
    plain = IPv6Address(bits)  # without its zone
    return [plain, *found, *(each for each in tunnels if each is not None)]


def _embedded_after(prefix: int, bits: int) -> int:
    """The IPv4 address after a NAT64 prefix of this length. Up to 64 bits, it skips the bits 64 to 71 (RFC 6052)."""
    if prefix > _BEFORE_GAP:
        return bits & _IPV4_BITS
    without_gap = bits >> 64 << 56 | bits & (1 << 56) - 1
    return without_gap >> 120 - prefix - 32 & _IPV4_BITS


def is_link_or_metadata(address: Address) -> bool:
    """Return whether the address, or an embedded one, is link-local or a metadata service of a cloud."""
    return any(each.is_link_local or each in METADATA for each in with_embedded(address))


def check_server(what: str, host: str) -> None:
    """Raises ``OptionError``, beginning with ``what`` (``kafka.source``), for a host that is a link-local address or a
    metadata service, in any spelling. Names are not resolved: the network must block the addresses of names."""
    try:
        refused = any(map(is_link_or_metadata, addresses_of(host))) or bool(METADATA_NAMES & {*spellings(host)})
    except ValueError as error:
        raise OptionError(f"{what}: {host!r} is not a valid host: {error}. Use a host name or an IP address.") from None
    if refused:
        raise OptionError(
            f"{what}: {host!r} is a link-local address or a metadata service, which can return credentials of the "
            "machine. "
            "Use the host name of the server, or the address at which other machines reach it."
        )


def check_servers(what: str, servers: str) -> None:
    """:func:`check_server` for each of a list such as ``host:9092,SSL://[fd00::1]:9092``. Raises ``OptionError``."""
    for server in filter(None, re.split(r"[,\s]+", servers)):
        rest = server.rpartition("://")[2]
        for host in _hosts_of(rest):
            check_server(what, host)


def _hosts_of(server: str) -> Sequence[str]:
    """The host of ``host:port``, brackets and port optional; both readings of an IPv6 address without brackets."""
    if server.startswith("["):
        return [server.partition("]")[0]]
    host, _, _ = server.rpartition(":")
    if ":" not in host:
        return [host or server] if server.strip(":") else []
    readings = [each for each in (server, host) if _is_ipv6(each)]
    return readings or [server]


def _is_ipv6(text: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(text.partition("%")[0]).version == 6
    return False


def check_location(what: str, location: str) -> None:
    """:func:`check_server` for the hosts of a path or URL of fsspec, chained ones (``zip://x::http://host/y``) too.
    Raises ``OptionError``."""
    for scheme, authority in _SCHEME_AND_AUTHORITY.findall(location):
        host = authority.rpartition("@")[2]
        if host and scheme.lower() not in _OBJECT_STORES | _LOCAL:
            check_servers(what, host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address always denotes this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
