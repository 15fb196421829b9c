"""URL, token and project of a control plane, and stored logins (contexts)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from epochal.addresses import is_loopback
from epochal.background.locks import lock_descriptor
from epochal.client.device_login import Grant, Provider
from epochal.errors import OptionError, Unauthenticated
from epochal.wire.projects import DEFAULT_PROJECT, LONGEST_PROJECT, is_project

DEFAULT_URL = "http://127.0.0.1:8765"


TOKEN_FILE = "admin.token"


_EARLY_SECONDS = 30.0
"""Time before expiry at which a token is renewed."""


@dataclass(frozen=True)
class Location:
    """URL of a control plane, bearer token if known, and project."""

    url: str
    token: str | None
    project: str = DEFAULT_PROJECT
    """Project of the applications."""

    @property
    def loopback(self) -> bool:
        return is_loopback(httpx.URL(self.url).host)


def home() -> Path:
    """The local data directory of the control plane: ``EPOCHAL_HOME``, or ``~/.local/share/epochal``."""
    configured = os.environ.get("EPOCHAL_HOME")
    return Path(configured) if configured else Path.home() / ".local" / "share" / "epochal"


def address_of(url: str | None = None) -> str:
    """The control plane's URL: the argument first, then EPOCHAL_URL, then the current context of ``epochal login``,
    then the local default. Raises ``OptionError``."""

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
    """The project at the control plane ``address``: the argument first, then EPOCHAL_PROJECT, then the project of the
    context of ``epochal login``, then ``default``. Raises ``OptionError``."""

    chosen = project or os.environ.get("EPOCHAL_PROJECT")
    if not chosen:
        context = read_contexts().of_url(address)
        chosen = DEFAULT_PROJECT if context is None else context[1].project or DEFAULT_PROJECT
    if not is_project(chosen):
        raise OptionError(
            f"{chosen!r} is not a valid project name. Use lower-case letters, digits and hyphens, at most "
            f"{LONGEST_PROJECT}."
        )
    return chosen


def locate(url: str | None = None, token: str | None = None, project: str | None = None) -> Location:
    """Find the control plane and its token: the argument, EPOCHAL_TOKEN, the stored login, or the local admin token.
    Raises ``OptionError``; ``Unauthenticated`` and ``IssuerUnavailable`` for an expired login that cannot be renewed.

    The local admin token is sent to the control plane of this machine only, and a login only to its own control plane.
    """

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


class Context(BaseModel):
    """A login to a control plane. ``project``: its project; ``None``: ``default``. ``expires_at``: expiry of the token
    in seconds since 1970; ``None`` if unknown."""

    model_config = ConfigDict(extra="ignore")

    url: str
    project: str | None = None
    issuer: str
    client: str
    id_token: bool = False
    token: str
    refresh_token: str | None = None
    expires_at: float | None = None

    def provider(self) -> Provider:
        return Provider(self.issuer, self.client, self.id_token)

    def take(self, grant: Grant) -> None:
        self.token, self.refresh_token = grant.token, grant.refresh_token
        self.expires_at = None if grant.lifetime_seconds is None else time.time() + grant.lifetime_seconds

    @property
    def is_over(self) -> bool:
        return self.expires_at is not None and time.time() > self.expires_at - _EARLY_SECONDS


class Contexts(BaseModel):
    """Logins by name. ``current``: name of the default one."""

    model_config = ConfigDict(extra="ignore")

    current: str | None = None
    contexts: dict[str, Context] = {}

    def of_url(self, url: str) -> tuple[str, Context] | None:
        """The login for a URL; the current context has precedence."""
        for name in sorted(self.contexts, key=lambda name: name != self.current):
            if self.contexts[name].url == url:
                return name, self.contexts[name]
        return None


def contexts_file() -> Path:
    """``epochal/contexts.json`` in ``XDG_CONFIG_HOME``, or in ``~/.config``."""
    configured = os.environ.get("XDG_CONFIG_HOME")
    # Without a home directory the path does not exist.
    return Path(configured or os.path.expanduser("~/.config")) / "epochal" / "contexts.json"


def read_contexts() -> Contexts:
    """Read the stored logins. Raises ``OptionError`` for an unreadable file."""
    file = contexts_file()
    try:
        return Contexts.model_validate_json(file.read_bytes())
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return Contexts()  # no login for this user
    except (OSError, ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else "it was not written by `epochal login`"
        raise OptionError(f"{file} cannot be read: {why}. Remove it, and log in again.") from None


@contextmanager
def changed_contexts() -> Iterator[Contexts]:
    """Lock the stored logins, and write them at the end of the block. Only the user can read the file."""
    file = contexts_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (file.parent / "contexts.lock").open("a") as lock:
        lock_descriptor(lock.fileno(), wait=True)
        contexts = read_contexts()
        yield contexts
        descriptor, new = tempfile.mkstemp(dir=file.parent, prefix="contexts.")  # of mode 0600
        with os.fdopen(descriptor, "w") as out:
            out.write(contexts.model_dump_json(indent=2) + "\n")
        os.replace(new, file)


def token_for(url: str) -> str | None:
    """Token of the stored login for a control plane, renewed if necessary; ``None`` without a login.

    Raises ``Unauthenticated`` if the login has expired, ``IssuerUnavailable`` if it cannot be renewed now.
    """
    found = read_contexts().of_url(url)
    if found is None:
        return None
    name, context = found
    if not context.is_over:
        return context.token
    with (
        changed_contexts() as contexts
    ):  # a refresh token may be good for one use: a concurrent process may have renewed it
        context = contexts.contexts.get(name, context)
        if context.is_over:
            if context.refresh_token is None:
                raise Unauthenticated(f"The login to {url} has expired; run `epochal login` again.")
            with closing(context.provider()) as provider:
                context.take(provider.refresh(context.refresh_token))
        return context.token
