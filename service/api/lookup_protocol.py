"""Server side of a connection to an app that answers look-ups.

Common look-ups are answered as soon as their head has been read, without a task, a scope or any layer of the framework.
All other requests go to the app.
"""

from __future__ import annotations

import logging
import time
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from epochal.logs import about
from epochal.service.api.context import QueryNode
from epochal.service.api.fast_lookups import FastAnswer, FastLookups
from epochal.service.api.http_protocol import HttpProtocol, limited
from epochal.service.api.transport import FORWARDED_FOR
from epochal.service.domain.proxies import TrustedProxies

_COMMON, _END = (b"GET /v1/applications/", b"GET /v1/projects/"), b"\r\n\r\n"
"""Beginning and end of the head of a look-up."""


class LookupProtocol(HttpProtocol):
    """uvicorn creates one for each connection; see :func:`protocol_of`."""

    lookups: ClassVar[FastLookups | None] = None
    proxies: ClassVar[TrustedProxies] = TrustedProxies(())
    status_lines: ClassVar[tuple[list[tuple[bytes, bytes]] | None, bytes]] = (None, b"")
    _may_answer = False
    """One request of the received data may be answered here; further ones wait for their turn."""
    _answered = False
    _within = False
    """Return whether the parser is within a request that has not arrived completely."""
    _begun = 0
    """Requests that have begun in the data received last."""

    def data_received(self, data: bytes) -> None:
        lookups = self.lookups
        if lookups is None or not lookups.enabled:
            self._may_answer = False
            super().data_received(data)
            return
        alone = not self._within and data.startswith(_COMMON) and data.endswith(_END)
        if alone and self._answer_again(lookups, data):
            return
        self._may_answer, self._begun = True, 0
        super().data_received(data)
        if alone and not self._may_answer and self._begun == 1 and not self._within:
            line, _, head = data.partition(b"\r\n")
            if line == b"GET %b HTTP/1.1" % self.url:  # and the remembered head has all headers
                lookups.remember(head, self.headers)

    def on_message_begin(self) -> None:
        self._begin_head()
        self.url, self.headers, self.expect_100_continue = b"", [], False
        # A scope is for requests of the app: created when this request is passed to it.
        self._within = True
        self._begun += 1

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._may_answer and self._answer_here():
            return
        url, headers, expected = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)  # the head has begun, and is already counted
        self.url, self.expect_100_continue = url, expected
        self.headers += headers
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._within = False
        if self._answered:
            self._answered = False
        else:
            super().on_message_complete()

    def _answer_here(self) -> bool:
        lookups, parser = self.lookups, self.parser
        if (
            lookups is None
            or parser.get_method() != b"GET"
            or parser.get_http_version() != "1.1"
            or not parser.should_keep_alive()
            or parser.should_upgrade()
            or not self._is_its_turn()
        ):
            return False
        began = time.perf_counter()
        if self.access_log and self._is_forwarded():
            return False
        answer = lookups.answer(self.url, self.headers)
        if answer is None:
            return False
        self._may_answer, self._answered = False, True
        self._send(lookups, answer, began)
        return True

    def _answer_again(self, lookups: FastLookups, data: bytes) -> bool:
        """Answer received data that equals an earlier request except for the key, which alone is parsed."""
        began = time.perf_counter()
        line, _, head = data.partition(b"\r\n")
        answer = lookups.again(line, head) if self._is_its_turn() else None
        if answer is None:
            return False
        self._unset_keepalive_if_required()
        self.url = line[4:-9]
        self._send(lookups, answer, began)
        return True

    def _is_its_turn(self) -> bool:
        """Return whether an answer can be sent now."""
        request: Any = self.cycle
        return not (
            (request is not None and not request.response_complete)
            or self.limit_concurrency is not None
            or self.root_path
            or self.flow.write_paused
            or self.transport.is_closing()
        )

    def _send(self, lookups: FastLookups, answer: FastAnswer, began: float) -> None:
        if self.access_log:
            self._log(answer)
        self.transport.write(self._status() + answer.content)
        self.on_response_complete()
        lookups.answered(answer, began)

    def _status(self) -> bytes:
        """The first line and the headers of all answers, which the server renews each second."""
        of, lines = self.status_lines
        usual = self.server_state.default_headers
        if of is not usual:
            lines = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % header for header in usual)
            type(self).status_lines = (usual, lines)
        return lines

    def _log(self, answer: FastAnswer) -> None:
        """Same format as uvicorn."""
        if not self.access_logger.isEnabledFor(logging.INFO):
            return
        client = "" if self.client is None else f"{self.client[0]}:{self.client[1]}"
        path = quote(unquote(self.url.decode("ascii")))
        with about(request=answer.request.decode()):
            self.access_logger.info('%s - "%s %s HTTP/%s" %d', client, "GET", path, "1.1", 200)

    def _is_forwarded(self) -> bool:
        """Return whether a trusted proxy names the original client: only the app resolves it for the log."""
        if self.client is None or not self.proxies.trusts(self.client[0]):
            return False
        return any(name == FORWARDED_FOR for name, _ in self.headers)


def protocol_of(app: FastAPI) -> type[LookupProtocol]:
    """The protocol class with which uvicorn serves a control plane or query node."""
    node: QueryNode = app.state.control_plane
    lookups = FastLookups(node.replicas, node.authenticator, node.metrics)
    proxies = TrustedProxies(node.settings.trusted_proxies)
    return limited(LookupProtocol, node.settings.limits, lookups=lookups, proxies=proxies)
