"""Callers of ``examples/sdg/key_value_store.py`` over HTTP. Each connection puts a batch, waits for its answers, gets
the same keys, and checks that their values are those of the batch.

    python -m benchmarks.callers URL TOKEN SECONDS CONNECTIONS NAME

A separate process, as ``benchmarks.load``. Each connection has its own keys, so that their values are known. ``NAME``
identifies the run. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from functools import partial
from urllib.parse import urlsplit

import uvloop

from benchmarks.load import PATIENCE_SECONDS, Connection
from benchmarks.result import percentile
from epochal.wire.calls import LONGEST_WAIT_SECONDS, MOST_CALLS

APPLICATION = "store"
VALUE_BYTES = 100
ID_BYTES = 16
"""Request ids are random, as those of the client."""
KEYS_OF_EACH = 10 * MOST_CALLS
"""Number of keys of a connection."""


class Caller:
    """The requests of one connection: ``put`` of its next thousand keys, then ``get`` of the same keys."""

    def __init__(self, host: str, token: str, name: str) -> None:
        self._name = name
        self._heads = {
            entry: (
                f"POST /v1/applications/{APPLICATION}/entries/{entry}?wait={LONGEST_WAIT_SECONDS:g} HTTP/1.1\r\n"
                f"Host: {host}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
                "Content-Length: %d\r\n\r\n"
            )
            for entry in ("put", "get")
        }
        self._round = 0
        self._puts = False

    def request(self) -> bytes:
        self._puts = not self._puts
        self._round += self._puts
        start = self._round * MOST_CALLS % KEYS_OF_EACH
        ids, key = os.urandom(ID_BYTES * MOST_CALLS).hex(), f"{self._name}-"
        value = f',"value":"{self._value}"' if self._puts else ""
        calls = ",".join(
            f'{{"request_id":"{ids[2 * ID_BYTES * number : 2 * ID_BYTES * (number + 1)]}",'
            f'"arguments":{{"key":"{key}{start + number}"{value}}}}}'
            for number in range(MOST_CALLS)
        )
        body = f'{{"calls":[{calls}]}}'.encode()
        return (self._heads["put" if self._puts else "get"] % len(body)).encode() + body

    def accepted(self, answer: bytes) -> bool:
        """Return whether all calls are answered, each ``get`` with the value of the last ``put``."""
        value = b"null" if self._puts else f'"{self._value}"'.encode()
        answered = b'"state":"answered","value":%b,"error":null' % value
        if answer.startswith(b"HTTP/1.1 200") and answer.count(answered) == MOST_CALLS:
            return True
        print(answer[:2000].decode(errors="replace"), file=sys.stderr)
        return False

    @property
    def _value(self) -> str:
        return f"{self._name} in round {self._round} ".ljust(VALUE_BYTES, "-")


def _itself(connection: Connection) -> Connection:
    """Factory that asyncio requires."""
    return connection


async def call(url: str, token: str, seconds: float, connections: int, name: str) -> dict[str, float]:
    loop, address = asyncio.get_running_loop(), urlsplit(url)
    host, port = address.hostname, address.port
    assert host is not None
    assert port is not None
    started = time.perf_counter()
    opened, waiting = [], []
    for number in range(connections):
        done: asyncio.Future[None] = loop.create_future()
        caller = Caller(address.netloc, token, f"{name}-{number}")
        connection = Connection(caller.request, started + seconds, done, caller.accepted)
        await loop.create_connection(partial(_itself, connection), host, port)
        opened.append(connection)
        waiting.append(done)
    await asyncio.wait_for(asyncio.gather(*waiting), seconds + LONGEST_WAIT_SECONDS + PATIENCE_SECONDS)
    took = time.perf_counter() - started
    latencies = [second for connection in opened for second in connection.seconds]
    return {
        "calls": len(latencies) * MOST_CALLS,
        "failures": sum(connection.failures for connection in opened),
        "seconds": took,
        "p50": percentile(latencies, 0.5),
        "p99": percentile(latencies, 0.99),
    }


def main() -> None:
    url, token, seconds, connections, name = sys.argv[1:]
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        raise SystemExit("The callers are for a control plane of this machine only.")
    print(json.dumps(uvloop.run(call(url, token, float(seconds), int(connections), name))))


if __name__ == "__main__":
    main()
