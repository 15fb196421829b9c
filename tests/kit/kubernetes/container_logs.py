"""The log endpoint of a node, which the API server calls to read a container's log (``kubectl logs``)."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from epochal.testing.servers.process import LOOPBACK
from tests.kit.kubernetes.cluster import make_certificate
from tests.kit.kubernetes.pods import POLL_SECONDS, Pod

_PART = 1 << 16


class ContainerLogs:
    """Serves container logs. ``find``: returns the pod of a namespace and name.

    Answers any caller: the API server has already authenticated it.
    """

    def __init__(self, folder: Path, find: Callable[[str, str], Pod | None]) -> None:
        key, certificate = make_certificate(folder, "kubelet")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(find))
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name="container-logs", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(find: Callable[[str, str], Pod | None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            match address.path.strip("/").split("/"):
                case ["containerLogs", namespace, name, container]:
                    pod = find(namespace, name)
                case _:
                    pod = None
            if pod is None:
                self.send_error(HTTPStatus.NOT_FOUND, "no such pod on this node")
                return
            query = {key: values[-1] for key, values in parse_qs(address.query).items()}
            log = pod.log_of(container, query.get("previous") == "true")
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            with suppress(OSError):  # the client has closed the connection
                for part in _parts(log, query, pod, container):
                    self.wfile.write(part)
                    self.wfile.flush()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Discard the access log."""

    return Handler


def _parts(log: Path, query: dict[str, str], pod: Pod, container: str) -> Iterator[bytes]:
    """Yield the last lines or bytes; with ``follow`` also new output, until the container has ended."""
    if not log.exists():
        return
    with log.open("rb") as file:
        content = file.read()
        if "tailLines" in query:
            lines = int(query["tailLines"])
            content = b"".join(content.splitlines(keepends=True)[-lines:]) if lines else b""
        if "limitBytes" in query:
            content = content[: int(query["limitBytes"])]
        yield content
        while query.get("follow") == "true":
            ended = _has_ended(pod, container)
            part = file.read(_PART)
            if part:
                yield part
            elif ended:
                return
            else:
                time.sleep(POLL_SECONDS)


def _has_ended(pod: Pod, container: str) -> bool:
    states = [item.state for item in [*pod.inits, *pod.containers] if item.manifest["name"] == container]
    return all("terminated" in state for state in states)
