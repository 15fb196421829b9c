"""A bare ASGI app that answers every request with the same bytes: the upper bound for a web server of one process.

    python -m benchmarks.bare

Reads one JSON object ``{"headers": [[name, value], ..], "body": text}`` from its input, and prints its address. It uses
the same server and settings as look-ups, and ends with its input.
"""

from __future__ import annotations

import json
import socket
import sys
from threading import Thread

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send


def answering(headers: list[tuple[bytes, bytes]], body: bytes) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def main() -> None:
    order = json.loads(sys.stdin.readline())
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in order["headers"]]
    app = answering(headers, order["body"].encode())
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False))
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    Thread(target=_end_with_input, args=[server], daemon=True).start()
    server.run(sockets=[listener])


def _end_with_input(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True


if __name__ == "__main__":
    main()
