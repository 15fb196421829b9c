"""A server that answers each request with the next step of a script, or closes the connection instead."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Script:
    """Steps for the next requests, one each, and the requests received so far."""

    steps: list[Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def then(self, *steps: Callable[[BaseHTTPRequestHandler], None]) -> None:
        self.steps.extend(steps)


def answer(
    status: int, body: Any, media_type: str = "application/json", **headers: str
) -> Callable[[BaseHTTPRequestHandler], None]:
    def step(handler: BaseHTTPRequestHandler) -> None:
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", media_type)
        handler.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return step


def problem(status: int, slug: str, detail: str, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    document = {"type": f"urn:epochal:problem:{slug}", "title": slug, "status": status, "detail": detail}
    return answer(status, document, "application/problem+json", **headers)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


@contextmanager
def scripted() -> Iterator[Script]:
    """A server that follows a script."""
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.requests.append(Request(self.command, self.path, dict(self.headers.items()), body))
            script.steps.pop(0)(self)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield script
    server.shutdown()
    server.server_close()
    thread.join()
