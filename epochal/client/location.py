"""Where the control plane is, and the token for it, when the caller does not say."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import httpx

from epochal.errors import OptionError
from epochal.wire.projects import DEFAULT_PROJECT, LONGEST_PROJECT, is_project

DEFAULT_URL = "http://127.0.0.1:8765"
TOKEN_FILE = "admin.token"


@dataclass(frozen=True)
class Location:
    """A control plane's URL, the bearer token for it, if one is known, and a project there."""

    url: str
    token: str | None
    project: str = DEFAULT_PROJECT
    """Whose applications are meant."""

    @property
    def loopback(self) -> bool:
        return is_loopback(httpx.URL(self.url).host)


def home() -> Path:
    """The local data directory: ``EPOCHAL_HOME``, or ``~/.local/share/epochal``; as the control plane has it."""
    configured = os.environ.get("EPOCHAL_HOME")
    return Path(configured) if configured else Path.home() / ".local" / "share" / "epochal"


def address_of(url: str | None = None) -> str:
    """The control plane's URL: the argument first, then EPOCHAL_URL, then the current context of ``epochal login``,
    then the local default. Raises ``OptionError``."""
    from epochal.client.contexts import read_contexts  # it knows this module

    address = url or os.environ.get("EPOCHAL_URL")
    if not address:
        known = read_contexts()
        context = known.contexts.get(known.current or "")
        address = DEFAULT_URL if context is None else context.url
    address = address.rstrip("/")
    try:
        parsed = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise OptionError(f"{address!r} is not a URL ({error}); give one such as {DEFAULT_URL}.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise OptionError(f"{address!r} is not an http or https URL; give one such as {DEFAULT_URL}.")
    return address


def project_at(address: str, project: str | None = None) -> str:
    """The project that is meant of the control plane at ``address``: the argument first, then EPOCHAL_PROJECT, then
    what the context of ``epochal login`` for it says, then ``default``. Raises ``OptionError``."""
    from epochal.client.contexts import read_contexts  # it knows this module

    chosen = project or os.environ.get("EPOCHAL_PROJECT")
    if not chosen:
        context = read_contexts().of_url(address)
        chosen = DEFAULT_PROJECT if context is None else context[1].project or DEFAULT_PROJECT
    if not is_project(chosen):
        raise OptionError(
            f"{chosen!r} is no name of a project: lower-case letters, digits and hyphens, at most {LONGEST_PROJECT}."
        )
    return chosen


def locate(url: str | None = None, token: str | None = None, project: str | None = None) -> Location:
    """Where the control plane is, and the token for it: the argument first, then EPOCHAL_TOKEN, then who has logged in
    there, then the local admin token. Raises ``OptionError``; ``Unauthenticated`` and ``IssuerUnavailable`` for a login
    that has expired and is not renewed.

    The local admin token is for the control plane of this machine, and a login for the one it was made for: neither is
    ever sent to another.
    """
    from epochal.client.contexts import token_for  # it knows this module

    address = address_of(url)
    known = token or os.environ.get("EPOCHAL_TOKEN") or token_for(address)
    return Location(address, known or _local_token(httpx.URL(address).host), project_at(address, project))


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
