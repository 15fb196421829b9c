"""Address and identity with which the sink, the source and the table of HDFS connect."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hdfs.client import Client, InsecureClient, TokenClient, _Request
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

from epochal.addresses import check_server
from epochal.errors import EnvironmentProblem, OptionError
from epochal.secrets import Secret

CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class HdfsAddress:
    """The NameNodes' WebHDFS addresses, and the identity to show. Serialisable; holds no connection.

    ``user``: accepted by a cluster without security; ``token``: a delegation token; ``kerberos``: use the ticket of the
    process. At most one of the three is set. ``timeout_seconds``: timeout for a response."""

    urls: tuple[str, ...]
    user: str | None = None
    token: Secret | None = None
    kerberos: bool = False
    timeout_seconds: float = 60.0

    @property
    def authority(self) -> str:
        """The NameNodes in sorted order: equal for the same cluster."""
        return ",".join(sorted(urlsplit(url).netloc for url in self.urls))

    def connect(self) -> Client:
        """Return a client of the ``hdfs`` package, which tries the next NameNode if one is down or on standby. Raises
        ``EnvironmentProblem`` if the package for Kerberos is required and missing, ``OptionError`` for a token that
        cannot be found."""
        package = logging.getLogger("hdfs")
        if package.level == logging.NOTSET:
            package.setLevel(logging.WARNING)  # it logs every request, many per epoch
        options: dict[str, Any] = {"url": ";".join(self.urls), "timeout": (CONNECT_SECONDS, self.timeout_seconds)}
        options["session"] = session = Session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _CheckedAdapter())
        if self.token is not None:
            return _ExactTokenClient(token=self.token.reveal(), **options)
        if self.kerberos:
            return _exact_kerberos_client()(**options)
        return _ExactInsecureClient(user=self.user, **options)


class _CheckedAdapter(HTTPAdapter):
    """Checks the server of each request, since a NameNode redirects to addresses of its choice."""

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        """Raises ``OptionError`` in addition to the errors of requests."""
        check_server("HDFS", urlsplit(request.url or "").hostname or "")
        return super().send(request, *args, **options)


class ExactOperations:
    """Operations that the ``hdfs`` package does not offer under a public name.

    The package declares a request in the class that uses it: every client below therefore has its own
    ``_check_access``.
    """

    _check_access: Any

    def move(self, source: str, destination: str) -> None:
        """Rename to exactly ``destination``, which must not exist; never moves into it or overwrites it."""
        self._rename(source, destination=destination, renameoptions="NONE")  # type: ignore[attr-defined]

    def replace(self, source: str, destination: str) -> None:
        """Rename a file to exactly ``destination``, replacing an existing file."""
        self._rename(source, destination=destination, renameoptions="OVERWRITE")  # type: ignore[attr-defined]

    def statuses(self, folder: str) -> list[dict[str, Any]]:
        """List a folder in one request (the package's own listing makes two for a single file)."""
        found: list[dict[str, Any]] = self._list_status(folder).json()["FileStatuses"]["FileStatus"]  # type: ignore[attr-defined]
        return found

    def check_access(self, path: str, permission: str) -> None:
        """Raises the server's error unless the caller has ``permission`` (``rwx``) on the path."""
        self._check_access(path, fsaction=permission)


class _ExactInsecureClient(ExactOperations, InsecureClient):  # type: ignore[misc]
    _check_access = _Request("GET")


class _ExactTokenClient(ExactOperations, TokenClient):  # type: ignore[misc]
    _check_access = _Request("GET")


def _exact_kerberos_client() -> type[Client]:
    try:
        from hdfs.ext.kerberos import KerberosClient
    except ImportError as error:
        raise EnvironmentProblem(
            "HDFS with kerberos=True needs the package requests-kerberos: pip install 'epochal[kerberos]'."
        ) from error

    class ExactKerberosClient(ExactOperations, KerberosClient):  # type: ignore[misc]
        _check_access = _Request("GET")

    return ExactKerberosClient


def address(
    what: str,
    url: str | Sequence[str],
    user: str | None = None,
    token: Secret | None = None,
    kerberos: bool = False,
    timeout_seconds: float = 60.0,
) -> HdfsAddress:
    """Create an address from an author's options. ``url``: one NameNode, several separated by ``;``, or a list.

    Raises ``OptionError``, beginning with ``what`` (``hdfs.sink``).
    """
    urls = [part.strip().rstrip("/") for part in (url.split(";") if isinstance(url, str) else url) if part.strip()]
    for part in urls:
        try:
            pieces = urlsplit(part)
        except ValueError as error:
            raise OptionError(f"{what}: {part!r} is not a URL: {error}.") from None
        if pieces.scheme not in ("http", "https") or not pieces.hostname:
            raise OptionError(
                f"{what}: {part!r} is not a NameNode's WebHDFS address. Use the HTTP address: 'http://namenode:9870'."
            )
        check_server(what, pieces.hostname)
        if pieces.username or pieces.password:
            raise OptionError(f"{what}: name the user with user=, not within the address of {pieces.hostname}.")
    if not urls:
        raise OptionError(f"{what} needs the NameNode's WebHDFS address: 'http://namenode:9870'.")
    if token is not None and not isinstance(token, Secret):
        raise OptionError(f"{what}: token must be a secret: token=secret('env:HDFS_TOKEN').")
    if sum((user is not None, token is not None, bool(kerberos))) > 1:
        raise OptionError(
            f"{what}: user, token and kerberos exclude each other; a token and a ticket already identify the user."
        )
    return HdfsAddress(tuple(urls), user, token, bool(kerberos), timeout_seconds)


def folder(what: str, path: str) -> str:
    """An absolute path of HDFS, without a slash at its end. Raises ``OptionError``, beginning with ``what``."""
    if path.startswith("hdfs://"):
        raise OptionError(f"{what}: path must not contain an address; write '/data/out', and set the NameNode in url.")
    if not path.startswith("/") or "#LATEST" in path or ":" in path:
        raise OptionError(f"{what}: {path!r} is not a path of HDFS. Give an absolute one, such as '/data/out'.")
    return posixpath.normpath(path)
