"""Documents that a token issuer publishes, as JSON over HTTPS: limited in time and size, and read only from the
requested URL."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from epochal.background.task import BackgroundTask
from epochal.errors import OptionError
from epochal.service.domain.addresses import check_encrypted

ANSWER_SECONDS = 5.0
"""Timeout for one document, from the resolution of the server's name to the last byte."""
MOST_BYTES = 1 << 20
_PIECE = 1 << 16

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Call:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None = None

    @property
    def path(self) -> str:
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class IssuerDocuments:
    """``authority``: a file with the certificates to trust; ``None``: the system's. ``token``: a file with the bearer
    token to send. Both are read for each request, since they may be replaced."""

    def __init__(
        self, authority: Path | None = None, token: Path | None = None, seconds: float = ANSWER_SECONDS
    ) -> None:
        """Raises ``OptionError`` for an authority that cannot be read or contains no certificates."""
        if authority is not None:
            try:
                _trust(authority)
            except OSError as error:
                raise OptionError(
                    f"{error}. Correct `authority` in the file of `--oidc` or `--kubernetes`, or remove it to use the "
                    "certificates of the system."
                ) from None
        self._authority = authority
        self._token = token
        self._seconds = seconds

    def documents(self) -> Callable[[str], dict[str, Any]]:
        """:meth:`document` for several URLs with one common timeout."""
        until = time.monotonic() + self._seconds
        return lambda url: self.document(url, max(0.1, until - time.monotonic()))

    def document(self, url: str, seconds: float | None = None) -> dict[str, Any]:
        """A JSON object, within ``seconds`` (default: those of this object). Raises ``OSError`` and ``ValueError`` with
        the cause.

        Proxies are not used and redirects are not followed: a redirect would send the control plane's own token to
        another server.
        """
        status, data = self._request(_Call("GET", url, self._authorization()), seconds)
        if status != HTTPStatus.OK:
            raise OSError(f"{urlsplit(url).hostname} has answered {status} for {urlsplit(url).path}")
        return _json_object(url, data)

    def submit(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Post a form. Returns the status, and the answer if it is JSON. Raises like :meth:`document`, but not for the
        status."""
        sent = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        status, data = self._request(_Call("POST", url, sent, urlencode(form).encode()), None)
        return status, _json_object(url, data) if status < HTTPStatus.INTERNAL_SERVER_ERROR else {}

    def _request(self, call: _Call, seconds: float | None) -> tuple[int, bytes]:
        check_encrypted(call.url)
        parts = urlsplit(call.url)
        assert parts.hostname is not None
        with closing(self._connection(parts.scheme, parts.hostname, parts.port)) as connection:
            within = self._seconds if seconds is None else seconds
            return _within(within, connection, lambda until: _read(connection, call, until))

    def _connection(self, scheme: str, host: str, port: int | None) -> HTTPConnection:
        if scheme == "http":
            return HTTPConnection(host, port, timeout=self._seconds)
        return HTTPSConnection(host, port, timeout=self._seconds, context=_trust(self._authority))

    def _authorization(self) -> Mapping[str, str]:
        if self._token is None or not self._token.exists():
            return {}
        return {"Authorization": f"Bearer {self._token.read_text().strip()}"}


def _trust(authority: Path | None) -> ssl.SSLContext:
    """The TLS context that trusts ``authority``. Raises ``OSError``, which names the file."""
    try:
        return ssl.create_default_context(cafile=None if authority is None else str(authority))
    except OSError as error:
        reason = error.strerror or str(error) if not isinstance(error, ssl.SSLError) else "it is not in PEM"
        raise OSError(f"The certificates to trust cannot be read from the authority {authority}: {reason}") from error


def _json_object(url: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError(f"{url} is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError(f"{url} is not a JSON object")
    return document


def _read(connection: HTTPConnection, call: _Call, until: float) -> tuple[int, bytes]:
    try:
        # Some servers return keys as `application/jwk-set+json` and refuse other types: accept any type.
        headers = {"Accept": "*/*", "Connection": "close", **call.headers}
        connection.request(call.method, call.path, call.body, headers)
        answer = connection.getresponse()
        data = bytearray()
        while time.monotonic() < until:
            piece = answer.read(_PIECE)
            if not piece and answer.length:
                raise OSError(f"{connection.host} ended before it was complete")
            if not piece:
                return answer.status, bytes(data)
            data += piece
            if len(data) > MOST_BYTES:
                raise ValueError(f"what {connection.host} has at {call.path} is larger than {MOST_BYTES} bytes")
    except HTTPException as error:
        raise OSError(f"{connection.host} has not answered in HTTP: {error!r}") from error
    raise TimeoutError(f"{connection.host} has not answered in time")


def _within(seconds: float, connection: HTTPConnection, work: Callable[[float], Result]) -> Result:
    """Return or raise the result of ``work`` within ``seconds``. A socket timeout applies to each read, and a server
    that sends single bytes slowly could block the caller forever: so another thread reads, and its connection is shut
    down."""
    reading = BackgroundTask("issuer", lambda: work(time.monotonic() + seconds), raises=True)
    if reading.wait(seconds):
        return reading.result()
    with suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)
    raise TimeoutError(f"{connection.host} has not answered within {seconds:g} s")
