"""How often Python calls the JVM of its SparkSession: each call is a round trip, and most make or analyse something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from py4j.java_gateway import GatewayClient
from py4j.protocol import CALL_COMMAND_NAME, MEMORY_COMMAND_NAME

OTHERS = "(others)"
"""What is looked up of classes and objects, made, or read of collections."""


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """By the name of the method how often this thread has called it. What tells the JVM of garbage is no call: it
    comes when Python collects it."""
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
