"""Where the control plane is, and the token for it, when the caller does not say."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import httpx

from epochal.errors import OptionError

DEFAULT_URL = "http://127.0.0.1:8765"
TOKEN_FILE = "admin.token"


@dataclass(frozen=True)
class Location:
    """A control plane's URL and the bearer token for it, if one is known."""

    url: str
    token: str | None

    @property
    def loopback(self) -> bool:
        return is_loopback(httpx.URL(self.url).host)


def home() -> Path:
    """The local data directory: ``EPOCHAL_HOME``, or ``~/.local/share/epochal``; as the control plane has it."""
    configured = os.environ.get("EPOCHAL_HOME")
    return Path(configured) if configured else Path.home() / ".local" / "share" / "epochal"


def locate(url: str | None = None, token: str | None = None) -> Location:
    """Arguments first, then EPOCHAL_URL and EPOCHAL_TOKEN, then the local defaults. Raises ``OptionError``.

    The local admin token is for the control plane of this machine: it is never sent to another host.
    """
    address = (url or os.environ.get("EPOCHAL_URL") or DEFAULT_URL).rstrip("/")
    try:
        parsed = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise OptionError(f"{address!r} is not a URL ({error}); give one such as {DEFAULT_URL}.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise OptionError(f"{address!r} is not an http or https URL; give one such as {DEFAULT_URL}.")
    return Location(address, token or os.environ.get("EPOCHAL_TOKEN") or _local_token(parsed.host))


def _local_token(host: str) -> str | None:
    if not is_loopback(host):
        return None
    try:
        return (home() / TOKEN_FILE).read_text().strip() or None
    except OSError:
        return None


def is_loopback(host: str) -> bool:
    """Is this a name or an address of this machine's loopback interface?"""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
