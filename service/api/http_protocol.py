"""Server side of a connection: answers malformed requests like any other refusal, and keeps idle connections from
crowding out active ones.

Opening a connection needs no token. A connection may therefore take its time to send a head only while connections are
available, and its memory is bounded before the caller is known.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from epochal.service.domain.setting_sections import Limits
from epochal.wire.problems import BAD_REQUEST, MEDIA_TYPE, PREFIX, Problem

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_RETRY: Mapping[str, str] = MappingProxyType({"retry-after": "1"})
_STALLED_LOOKS = 3
"""Number of checks without progress after which an answer counts as unread."""

Server = TypeVar("Server", bound="type[HttpProtocol]")


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which would answer in plain text and wait without limit. Connections are checked
    periodically, by ``limits``; no request is counted or timed."""

    limits: ClassVar[Limits] = Limits()
    most_connections: ClassVar[int] = limits.connections
    _heads = 0
    """Number of requests that have begun."""
    _in_head = False
    _head_bytes = 0
    _waited: int | None = 0
    """Number of requests begun at the last check that found the connection idle; ``None`` if it was active."""
    _unread: tuple[int, int] = (0, 0)
    """Bytes of an answer that the client has not read, and the number of checks since."""
    _made_at = 0.0
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._made_at = self.loop.time()
        if len(self.connections) > self.most_connections and not self._make_room():
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too-many-connections",
                "The maximum number of connections is in use, each by a request. Try again later.",
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
                    f"The path and headers of the request exceed {self.limits.head_bytes} bytes. Send long values in "
                    "the body.",
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
        detail = f"{msg} Send HTTP/1.1; percent-encode non-printable characters in paths, queries and headers."
        self._refuse(HTTPStatus.BAD_REQUEST, BAD_REQUEST, detail)

    def _refuse(self, status: HTTPStatus, slug: str, detail: str, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        """Send the refusal, unless an answer is being sent, and close the connection."""
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
        elif self.timeout_keep_alive_task is not None:  # uvicorn closes it soon
            self._waited = None
        elif self._waited == self._heads:
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                "request-too-slow",
                f"No complete request arrived within {self.limits.head_seconds:g} s. Connect when the request is "
                "ready.",
            )
        else:
            self._waited = self._heads

    def _look_at_answer(self) -> None:
        """Close a connection whose client does not read its answer, which would hold memory."""
        left = self.transport.get_write_buffer_size()
        before, looks = self._unread
        self._unread = (left, looks + 1 if left and left == before else 0)
        if self._unread[1] >= _STALLED_LOOKS:
            self.transport.abort()

    def _make_room(self) -> bool:
        """Close an idle connection: one that never sent a request, else the oldest. Returns whether one was found."""
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
    """``protocol`` with these limits, and at most half as many connections as the process may open files: the
    catalog and the store need files, too."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.connections if open_files == resource.RLIM_INFINITY else min(limits.connections, open_files // 2)
    limited_protocol: Any = type("LimitedProtocol", (protocol,), {"limits": limits, "most_connections": most, **more})
    return limited_protocol  # type: ignore[no-any-return]
