"""Receivers of webhooks, and control planes that may deliver to them."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from epochal.client.events import verify_signature
from epochal.service.domain.settings import Settings
from epochal.service.runtime import webhooks as deliveries
from tests.service.conftest import Plane, StandInSupervisor, free_port, http_client, serving

SECRET = "a secret of the receiver".replace(" ", "-")
KINDS = ["epoch.committed", "epoch.aborted", "attempt.failed", "application.failed"]


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    if ":" not in host:
        return ThreadingHTTPServer
    return type("IPv6Server", (ThreadingHTTPServer,), {"address_family": socket.AF_INET6})


class Receiver:
    """Answers with the statuses of ``answers``, one each, then with 204. ``accepted``: the events that were answered
    with 204."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1", location: str = "/elsewhere") -> None:
        receiver = self
        self.answers: list[int] = []
        self.received: list[dict[str, Any]] = []
        self.paths: list[tuple[str | None, str]] = []
        self.accepted: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                receiver.paths.append((self.headers["Host"], self.path))
                self.send_error(404)

            def do_POST(self) -> None:
                receiver.paths.append((self.headers["Host"], self.path))
                body = self.rfile.read(int(self.headers["content-length"]))
                verify_signature(SECRET, self.headers["Epochal-Signature"], body)
                event = json.loads(body)
                assert (self.headers["Epochal-Event-Id"], self.headers["Epochal-Event"]) == (event["id"], event["kind"])
                receiver.received.append(event)
                status = receiver.answers.pop(0) if receiver.answers else 204
                if status == 204:
                    receiver.accepted.append(event)
                self.send_response(status)
                self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = _server_class(host)((host, port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?a=b"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def encrypt(self, certificate: Path, key: Path, names: list[str | None]) -> None:
        """Speak TLS; append the server name of each connection to ``names``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.sni_callback = lambda socket, name, context: names.append(name)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(deliveries, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(deliveries, "ROUND_SECONDS", 0.02)


@contextmanager
def running(settings: Settings) -> Iterator[Plane]:
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        yield Plane(control, client, settings, supervisor, [])


@pytest.fixture
def local(tmp_path: Path) -> Settings:
    """A control plane that may deliver to this machine."""
    return Settings(data=tmp_path / "data", port=free_port(), webhooks_local=True)


@pytest.fixture
def plane(local: Settings) -> Iterator[Plane]:
    with running(local) as plane:
        yield plane


def add_webhook(plane: Plane, receiver: Receiver, **more: Any) -> str:
    body = {"url": receiver.url, "kinds": KINDS, "secret": SECRET} | more
    return str(plane.post("/v1/webhooks", 201, **body)["id"])


def status_of(plane: Plane, id: str) -> Any:
    return plane.get(f"/v1/webhooks/{id}")
