"""Counts calls from Python into the JVM of the SparkSession. Each call is a round trip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from py4j.java_gateway import GatewayClient
from py4j.protocol import CALL_COMMAND_NAME, MEMORY_COMMAND_NAME

OTHERS = "(others)"
"""Methods of calls that access classes, objects and collections."""


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Number of calls of this thread by the name of the method, without notifications of collected objects, whose time
    depends on the garbage collector."""
    calls: Counter[str] = Counter()
    thread, send = get_ident(), GatewayClient.send_command

    def counting(client: GatewayClient, command: str, *arguments: Any, **named: Any) -> Any:
        if get_ident() == thread and not command.startswith(MEMORY_COMMAND_NAME):
            calls[command.split("\n", 3)[2] if command.startswith(CALL_COMMAND_NAME) else OTHERS] += 1
        return send(client, command, *arguments, **named)

    GatewayClient.send_command = counting
    try:
        yield calls
    finally:
        GatewayClient.send_command = send
