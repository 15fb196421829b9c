"""HTTP requests of S3 as :mod:`epochal.testing.servers.s3_proxy` receives, passes on and answers them.

Requests and answers are held in memory, so that a request can reach the server after its client has ended.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from typing import Literal
from urllib.parse import parse_qsl, unquote

from epochal.testing.servers.process import LOOPBACK

Kind = Literal["PUT", "GET", "HEAD", "LIST", "DELETE", "POST"]
"""``LIST`` is a GET of a bucket, and ``DELETE`` includes the POST that deletes several objects."""
Headers = Sequence[tuple[str, str]]
Part = Literal["nothing", "half", "all"]
_OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "expect", "transfer-encoding", "te", "upgrade"})


@dataclass(frozen=True)
class Request:
    """A finished request.

    ``status`` is the status that the client received, ``server_status`` that of the server; None if there was no
    answer. ``fault`` is the kind of the fault that it met. ``bytes_in`` and ``bytes_out`` are the sizes of the bodies
    that the client sent and received.
    """

    kind: Kind
    method: str
    path: str
    query: dict[str, str]
    status: int | None
    server_status: int | None
    bytes_in: int
    bytes_out: int
    if_match: str | None
    if_none_match: str | None
    range: str | None
    fault: str | None
    seconds: float


@dataclass(frozen=True)
class Answer:
    """An answer to a client, of which ``part`` is sent before the connection is closed; ``all`` keeps it open."""

    status: int
    headers: Headers = ()
    body: bytes = b""
    reason: str = ""
    part: Part = "all"


@dataclass(frozen=True)
class Call:
    """A request as the client sent it. ``target`` is the path and query as in the request line."""

    method: str
    target: str
    headers: Headers
    body: bytes
    began: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def kind(self) -> Kind:
        if self.method == "GET":
            is_bucket = "/" not in self.path.strip("/")
            return "LIST" if is_bucket or "list-type" in self.query else "GET"
        if self.method == "POST":
            return "DELETE" if "delete" in self.query else "POST"
        kinds: dict[str, Kind] = {"PUT": "PUT", "HEAD": "HEAD", "DELETE": "DELETE"}
        return kinds[self.method]

    def names(self, text: str) -> bool:
        """Check whether the key, the prefix of a listing or a key of a bulk deletion contains the text."""
        key = self.path.lstrip("/").partition("/")[2]
        deleted = self.body if self.method == "POST" and self.kind == "DELETE" else b""
        return text in key or text in self.query.get("prefix", "") or text.encode() in deleted

    def header(self, name: str) -> str | None:
        return next((value for own, value in self.headers if own.lower() == name), None)

    def finished(self, answer: Answer | None, server_status: int | None, fault: str | None) -> Request:
        """Return the record of this request with the client's answer."""
        return Request(
            self.kind,
            self.method,
            self.path,
            self.query,
            None if answer is None or answer.part == "nothing" else answer.status,
            server_status,
            len(self.body),
            0 if answer is None else len(_sent(answer, with_body=self.method != "HEAD")[1]),
            self.header("if-match"),
            self.header("if-none-match"),
            self.header("range"),
            fault,
            time.monotonic() - self.began,
        )


Forward = Callable[[Call], "Answer | None"]
"""Passes a request on. Returns None if the server is down or ended without an answer."""
Perform = Callable[[Call, Forward], "Answer | None"]
"""Performs a request. None closes the client's connection without an answer."""


def error(status: int, code: str) -> Answer:
    """Return an error of S3."""
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>By the proxy</Message></Error>'
    return Answer(status, [("Content-Type", "application/xml")], text.encode(), code)


def _is_readable(connection: socket.socket) -> bool:
    """True if bytes or its end wait in a connection. ``select()`` would fail for descriptors above 1,023."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class ClientConnection(BaseHTTPRequestHandler):
    """One connection of a client and the corresponding connection to the server. The constructor serves it until its
    end. Raises ``OSError`` if the client ends it within a request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, client: socket.socket, address: tuple[str, int], server_port: int, perform: Perform) -> None:
        self._perform = perform
        self._server = HTTPConnection(LOOPBACK, server_port)
        try:
            super().__init__(client, address, None)  # type: ignore[arg-type]  # no socketserver accepts connections
        finally:
            self._server.close()

    def _exchange(self) -> None:
        target = self.requestline.split(" ")[1]
        call = Call(self.command, target, self.headers.items(), self._body())
        answer = self._perform(call, self._forward)
        if answer is None or answer.part != "all":
            self.close_connection = True
        if answer is not None:
            head, body = _sent(answer, with_body=self.command != "HEAD")
            self.connection.sendall(head + body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _exchange

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self._exactly(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self._exactly(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(pieces)

    def _exactly(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionError("The client ended the connection within a request.")
        return data

    def _forward(self, call: Call) -> Answer | None:
        server = self._server
        # The server closes idle connections. A request is never sent twice: the first one may have had an effect.
        if server.sock is not None and _is_readable(server.sock):
            server.close()
        try:
            server.putrequest(call.method, call.target, skip_host=True, skip_accept_encoding=True)
            for name, value in _end_to_end(call.headers):
                if name.lower() != "content-length":
                    server.putheader(name, value)
            if call.body or call.method in ("PUT", "POST"):
                server.putheader("Content-Length", str(len(call.body)))
            server.endheaders(call.body)
            response = server.getresponse()
            body = response.read()
        except (OSError, HTTPException):
            server.close()
            return None
        return Answer(response.status, _end_to_end(response.getheaders()), body, response.reason)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: the proxy keeps the requests."""


def _end_to_end(headers: Headers) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION]


def _sent(answer: Answer, with_body: bool) -> tuple[bytes, bytes]:
    """Return the bytes of the head and of the body that the client receives."""
    headers = list(answer.headers)
    if answer.body or not any(name.lower() == "content-length" for name, _ in headers):
        headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
        if answer.status not in (204, 304):
            headers.append(("Content-Length", str(len(answer.body))))
    if answer.part != "all":
        headers.append(("Connection", "close"))
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in headers), "", ""]
    head, body = "\r\n".join(lines).encode("latin-1"), answer.body if with_body else b""
    if answer.part == "half":
        return (head, body[: len(body) // 2]) if body else (head[: len(head) // 2], b"")
    return (b"", b"") if answer.part == "nothing" else (head, body)
