"""A lean HTTP/1.1 client that keeps a fixed number of connections busy and records the latency of each answer.

    python -m benchmarks.load URL TOKEN SECONDS CONNECTIONS point PATH KEYS
    python -m benchmarks.load URL TOKEN SECONDS CONNECTIONS batch PATH KEYS
    python -m benchmarks.load URL TOKEN SECONDS CONNECTIONS columns PATH KEYS

Prints one JSON object. A separate process, so that it does not share an interpreter with the measured program. It
handles bytes only, to use little of the shared cores. Loopback only; it ends after SECONDS.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import uvloop

BATCH = 10_000
PATIENCE_SECONDS = 60
LENGTH = b"content-length:"


class Connection(asyncio.Protocol):
    """Sends one request at a time, the next one as soon as an answer is complete."""

    def __init__(
        self,
        request: Callable[[], bytes],
        deadline: float,
        done: asyncio.Future[None],
        accepted: Callable[[bytes], bool] | None = None,
    ) -> None:
        self.seconds: list[float] = []
        self.failures = 0
        self._request = request
        self._accepted = accepted or _is_success
        self._deadline = deadline
        self._done = done
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the interface, but not the class
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._received[:end].lower()
        at = head.index(LENGTH) + len(LENGTH)
        length = int(head[at : head.find(b"\r\n", at) if b"\r\n" in head[at:] else len(head)])
        if len(self._received) < end + 4 + length:
            return
        now = time.perf_counter()
        self.seconds.append(now - self._sent)
        self.failures += not self._accepted(self._received)
        self._received = b""
        if now < self._deadline:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request())


def _is_success(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200")


def point_request(host: str, token: str, path: str, keys: int) -> Callable[[], bytes]:
    """GET of a random key."""
    before = f"GET {path}/keys/".encode()
    after = f" HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    choose = random.Random(1).random
    return lambda: b"%b%d%b" % (before, int(choose() * keys), after)


def batch_request(host: str, token: str, path: str, keys: int, accept: str = "application/json") -> Callable[[], bytes]:
    """POST of :data:`BATCH` random keys, one of a few prepared bodies."""
    chooser = random.Random(1)
    requests = []
    for _ in range(8):
        chosen = [{"key": chooser.randrange(keys)} for _ in range(BATCH)]
        body = json.dumps({"keys": chosen}).encode()
        head = (
            f"POST {path}/lookup HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nAccept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    return lambda: chooser.choice(requests)


def _itself(connection: Connection) -> Connection:
    """Factory that asyncio requires."""
    return connection


async def load(url: str, seconds: float, connections: int, request: Callable[[], bytes]) -> dict[str, float]:
    loop, address = asyncio.get_running_loop(), urlsplit(url)
    if address.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise SystemExit("The load is for a control plane of this machine only.")
    started = time.perf_counter()
    opened, waiting = [], []
    for _ in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        connection = Connection(request, started + seconds, done)
        await loop.create_connection(partial(_itself, connection), address.hostname, address.port or 80)
        opened.append(connection)
        waiting.append(done)
    await asyncio.wait_for(asyncio.gather(*waiting), seconds + PATIENCE_SECONDS)
    took = time.perf_counter() - started
    latencies = sorted(second for connection in opened for second in connection.seconds)
    return {
        "requests": len(latencies),
        "failures": sum(connection.failures for connection in opened),
        "seconds": took,
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[len(latencies) * 99 // 100],
    }


def main() -> None:
    url, token, seconds, connections, kind, path, keys = sys.argv[1:]
    columns = partial(batch_request, accept="application/vnd.apache.arrow.stream")
    make: dict[str, Callable[..., Callable[[], bytes]]]
    make = {"point": point_request, "batch": batch_request, "columns": columns}
    request = make[kind](urlsplit(url).netloc, token, path, int(keys))
    print(json.dumps(uvloop.run(load(url, float(seconds), int(connections), request))))


if __name__ == "__main__":
    main()
