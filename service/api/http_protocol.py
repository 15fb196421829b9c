"""The server's side of a connection: what is no HTTP request is refused as every other request is, and a connection
that asks for nothing takes the place of nobody who does.

Who opens connections needs no token. So each may take its time for the head of a request, for as long as there are
connections left, and no longer; what it holds of memory is bounded before anything is known of it.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from epochal.service.domain.settings import Limits
from epochal.wire.problems import BAD_REQUEST, MEDIA_TYPE, PREFIX, Problem

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_RETRY: Mapping[str, str] = MappingProxyType({"retry-after": "1"})
_STALLED_LOOKS = 3
"""Of an answer not a byte was taken for so many looks: nobody reads it."""

Server = TypeVar("Server", bound="type[HttpProtocol]")


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, which would answer in plain text, and wait for ever. A look is taken at each connection now and then,
    by ``limits``; nothing is counted or timed for each request."""

    limits: ClassVar[Limits] = Limits()
    most_connections: ClassVar[int] = limits.connections
    _heads = 0
    """Requests that have begun."""
    _in_head = False
    _head_bytes = 0
    _waited: int | None = 0
    """How many had begun when the last look found that nothing was asked for; ``None``: something was."""
    _unread: tuple[int, int] = (0, 0)
    """Bytes of an answer that nobody took, and for how many looks."""
    _made_at = 0.0
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._made_at = self.loop.time()
        if len(self.connections) > self.most_connections and not self._make_room():
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too-many-connections",
                "As many connections as are taken are in use, each by a request. Call again in a moment.",
                _RETRY,
            )
            return
        self._look = self.loop.call_later(self.limits.head_seconds, self._look_at)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    "head-too-large",
                    f"The request's path and headers are larger than the {self.limits.head_bytes} bytes that are "
                    "taken. Send less in them; what is long belongs in the body.",
                )

    def on_message_begin(self) -> None:
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def _begin_head(self) -> None:
        self._heads += 1
        self._in_head, self._head_bytes = True, 0

    def send_400_response(self, msg: str) -> None:
        detail = f"{msg} Send HTTP/1.1; percent-encode what is not printable in paths, queries and headers."
        self._refuse(HTTPStatus.BAD_REQUEST, BAD_REQUEST, detail)

    def _refuse(self, status: HTTPStatus, slug: str, detail: str, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        """Says so, unless an answer is being given, and ends the connection."""
        if self.transport.is_closing():
            return
        self._in_head = False
        if not self._is_answering():
            problem = Problem(type=PREFIX + slug, title=status.phrase, status=status.value, detail=detail)
            body = problem.model_dump_json(exclude_none=True).encode()
            more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
                f"content-length: {len(body)}\r\n{more}connection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def _look_at(self) -> None:
        if self.transport.is_closing():
            return
        self._look = self.loop.call_later(self.limits.head_seconds, self._look_at)
        if self._is_answering():
            self._waited = None
            self._look_at_answer()
        elif self.timeout_keep_alive_task is not None:  # uvicorn ends it soon
            self._waited = None
        elif self._waited == self._heads:
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                "request-too-slow",
                f"No request came whole within {self.limits.head_seconds:g} s. Connect when there is something to ask.",
            )
        else:
            self._waited = self._heads

    def _look_at_answer(self) -> None:
        """Who asks for something and does not read it holds the answer, and what makes it."""
        left = self.transport.get_write_buffer_size()
        before, looks = self._unread
        self._unread = (left, looks + 1 if left and left == before else 0)
        if self._unread[1] >= _STALLED_LOOKS:
            self.transport.abort()

    def _make_room(self) -> bool:
        """Ends a connection that asks for nothing: one that never did, else the oldest. Whether there was one."""
        idle: list[HttpProtocol] = [
            other
            for other in self.connections
            if isinstance(other, HttpProtocol)
            and other is not self
            and not other._is_answering()
            and not other.transport.is_closing()
        ]
        if not idle:
            return False
        chosen = min(idle, key=lambda other: (other.cycle is not None, other._made_at))
        self.connections.discard(chosen)
        chosen.transport.abort()
        return True


def limited(protocol: Server, limits: Limits, **more: Any) -> Server:
    """``protocol`` with these limits, and no more connections than half of the files that the process may open: the
    catalog and the store need files, too."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.connections if open_files == resource.RLIM_INFINITY else min(limits.connections, open_files // 2)
    limited_protocol: Any = type("LimitedProtocol", (protocol,), {"limits": limits, "most_connections": most, **more})
    return limited_protocol  # type: ignore[no-any-return]
