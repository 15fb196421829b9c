"""A control plane with scripted answers to drivers, over a real socket. Answers can be lost."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from epochal.contracts.catalog import ManifestReference

MANIFEST = ManifestReference(branch="main", epoch=4, path="main/manifests/4.json", sha256="a" * 64)
PREFIX = "/internal/v1/executions/e1/attempts/2/"
POINT = {
    "application": "flights",
    "branch": "main",
    "attempt": 2,
    "head": {**MANIFEST.model_dump(), "encryption": "none"},
    "prepared": [],
    "started": [],
    "next_epoch": 5,
    "begun": {"kind": "sideways", "detail": {}, "weight": 1},
    "cluster": {"nodes": 3},
}


@dataclass
class Reply:
    """``status`` and JSON body. ``lost``: the request is received, and the connection closed without an answer."""

    status: int = 204
    body: Any = None
    lost: bool = False


def problem(status: int, slug: str, detail: str = "reason") -> Reply:
    return Reply(status, {"type": f"urn:epochal:problem:{slug}", "title": slug, "status": status, "detail": detail})


@dataclass
class Script:
    """The replies of the control plane, one a call; the last one is repeated. Records the requests.

    ``artifact``: the content of every artifact, answered outside the script; ``None``: the script answers it.
    """

    replies: list[Reply]
    artifact: bytes | None = None
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    answered: threading.Event = field(default_factory=threading.Event)


@contextmanager
def control_plane(script: Script, port: int = 0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if script.artifact is not None and "/artifacts/" in self.path:
                self._send(200, script.artifact)
                return
            script.asked.append((self.command, self.path.removeprefix(PREFIX), json.loads(text) if text else None))
            script.tokens.add(self.headers.get("Authorization"))
            reply = script.replies.pop(0) if len(script.replies) > 1 else script.replies[0]
            if reply.lost:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._send(reply.status, b"" if reply.body is None else json.dumps(reply.body).encode())
            script.answered.set()

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
