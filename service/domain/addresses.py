"""Hosts and addresses: which mean this machine, and where the control plane lets itself be sent to by its callers."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from epochal.addresses import METADATA, meant_by, written
from epochal.errors import InvalidInput


def check_address(address: str) -> None:
    """Raises ``InvalidInput`` for an address of this machine, of its link (metadata services of clouds), or of none;
    however it is written."""
    for meant in meant_by(address):
        if (
            meant.is_loopback
            or meant.is_link_local
            or meant.is_unspecified
            or meant.is_multicast
            or meant.is_reserved
            or meant in METADATA
        ):
            raise InvalidInput(
                f"{meant} is an address of the control plane's own machine or link, where nothing is delivered to. "
                "If that is meant, start the control plane with EPOCHAL_WEBHOOKS_LOCAL=1."
            )


def check_host(host: str) -> None:
    """As :func:`check_address`, where the host is an address, in any form that a resolver takes for one, or means this
    machine; names are not resolved."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        check_address("127.0.0.1")
    address = written(host)
    if address is not None:
        check_address(address)


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_encrypted(url: str) -> None:
    """Raises ``ValueError`` for a URL where somebody on the way could answer: any but of https, or of this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL ({error})") from None
    if not host or parts.scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is not an https URL")
    if parts.username is not None or parts.fragment:
        raise ValueError(f"{host}: a URL of an issuer has neither user nor fragment")
    if parts.scheme == "http" and not is_loopback(host):
        raise ValueError(f"{url!r} is not https: whoever is on the way to {host} could answer in its place")
