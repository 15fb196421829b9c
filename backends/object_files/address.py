"""Address and credentials with which the files connectors reach an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from epochal.addresses import check_server
from epochal.errors import EpochalError, OptionError
from epochal.pipeline.definitions import check_flag
from epochal.secrets import Secret
from epochal.snapshots.object_store import PATIENCE_SECONDS, ObjectStoreFiles

_S3: Final = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "anonymous")
_GCS: Final = ("service_account", "service_account_key", "anonymous")
_AZURE: Final = (
    "account_name",
    "account_key",
    "sas_key",
    "client_id",
    "client_secret",
    "tenant_id",
    "endpoint",
    "anonymous",
)
_OF_SCHEME: Final = {"s3": _S3, "gs": _GCS}
_SAME_SCHEME: Final = {"s3a": "s3", "gcs": "gs", "azure": "az"}
_SECRET: Final = frozenset(
    {"secret_access_key", "session_token", "service_account_key", "account_key", "sas_key", "client_secret"}
)
"""Options whose values must be secrets."""
STORE_OPTIONS: Final = frozenset({*_S3, *_GCS, *_AZURE})
_PORT: Final = re.compile(r":\d+$")
_connected: dict[tuple[int, ObjectAddress], ObjectStoreFiles] = {}
"""Clients by process and address. A client has a pool of connections and caches credentials."""


@dataclass(frozen=True)
class ObjectAddress:
    """A bucket or container, and the options that take precedence over the environment. Serialisable.

    ``url``: such as ``s3://bucket``, without a path.
    """

    url: str
    options: tuple[tuple[str, str | bool | Secret], ...] = ()

    def connect(self) -> ObjectStoreFiles:
        """The client of this process. Paths are relative to the bucket. Raises ``OptionError`` for a secret that cannot
        be found, and ``OSError``."""
        key = (os.getpid(), self)
        files = _connected.get(key)
        if files is None:
            files = _connected[key] = ObjectStoreFiles(self.url, PATIENCE_SECONDS, settings=self.settings())
        return files

    def settings(self) -> dict[str, Any]:
        """The library's settings, with the values of secrets. Raises ``OptionError`` for a secret that cannot be
        found."""
        found: dict[str, Any] = {}
        for name, value in self.options:
            name = "skip_signature" if name == "anonymous" else name
            found[name] = value.reveal() if isinstance(value, Secret) else value
        return found

    @property
    def described(self) -> dict[str, Any]:
        """The options for users: of secrets, the references."""
        return {name: value.reference if isinstance(value, Secret) else value for name, value in self.options}


@dataclass(frozen=True)
class ObjectLocation:
    """A location on an object store: the address of the bucket and the path in it, without slashes at its ends."""

    address: ObjectAddress
    path: str

    @classmethod
    def checked(cls, what: str, url: str, options: Mapping[str, Any]) -> ObjectLocation:
        """Check the arguments of ``what`` (such as ``files.source``). Raises ``OptionError``."""
        scheme, _, rest = url.partition("://")
        bucket, _, path = rest.partition("/")
        scheme = _SAME_SCHEME.get(scheme.lower(), scheme.lower())
        if not bucket or "//" in path:
            raise OptionError(f"{what}: {url!r} must have the form {scheme}://bucket/path, without empty folders.")
        allowed = _OF_SCHEME.get(scheme, _AZURE)
        present = {name: value for name, value in options.items() if value is not None}
        for name, value in present.items():
            _check_option(what, scheme, name, value, allowed)
        if ("access_key_id" in present) != ("secret_access_key" in present):
            raise OptionError(f"{what}: access_key_id and secret_access_key belong together. Set both, or neither.")
        return cls(ObjectAddress(f"{scheme}://{bucket}", tuple(sorted(present.items()))), path.strip("/"))

    @property
    def url(self) -> str:
        return f"{self.address.url}/{self.path}" if self.path else self.address.url


def without_store_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the options of a connector into those of the object store and the others."""
    store = {name: value for name, value in options.items() if name in STORE_OPTIONS}
    return store, {name: value for name, value in options.items() if name not in STORE_OPTIONS}


def check_local(what: str, path: str, store_options: Mapping[str, Any]) -> None:
    """Raises ``OptionError`` for options of an object store with a path on another file system."""
    for name in store_options:
        raise OptionError(f"{what}: {name} applies to object stores only, and {path!r} is not on one. Remove it.")


def _check_option(what: str, scheme: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if name not in allowed:
        raise OptionError(f"{what} has no option {name!r} for {scheme}://. Options are {', '.join(sorted(allowed))}.")
    if name == "anonymous":
        check_flag(what, name, value)
    elif name in _SECRET and not isinstance(value, Secret):
        # The value can be the secret itself, so the message does not repeat it.
        raise OptionError(f"{what}: {name} must be a secret, such as {name}=secret('env:NAME').")
    elif not isinstance(value, str | Secret) or value == "":
        raise OptionError(f"{what}: {name} must be a text or a secret.")
    if name == "endpoint":
        _check_endpoint(what, value)


def _check_endpoint(what: str, endpoint: Any) -> None:
    parts = urlsplit(endpoint) if isinstance(endpoint, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise OptionError(f"{what}: endpoint must be a URL such as 'https://s3.example.org:9000'.")
    check_server(what, _PORT.sub("", parts.netloc))


@contextmanager
def translated(
    subject: str,
    what: str,
    kind: type[EpochalError],
    waits: type[EpochalError],
) -> Iterator[None]:
    """Inside the block, errors of the store become ``kind``; ``waits`` if it does not answer, or serves no requests.

    ``subject``: such as ``Sink 'out' (files:s3://bucket/out)``; ``what``: the step.
    """
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).rstrip(".")
        about = f" ({error.filename})" if error.filename else ""
        if isinstance(error, ConnectionError):
            raise waits(f"{subject} could not {what}: {reason}{about}. Check that the store is reachable.") from error
        raise kind(f"{subject} could not {what}: {reason}{about}.") from error
