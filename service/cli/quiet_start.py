"""Spark's JVM says much when it starts, on the standard error that it inherits: none of it is for the author."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


_STARTED = b"\0epochal: the JVM has started\0"


@contextmanager
def quiet_start() -> Iterator[None]:
    """What processes started in the block write to standard error is dropped until its end, and passed on afterwards.

    So an author's `print` in a task, which comes by way of the JVM, is seen; Spark's greetings are not.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    threading.Thread(target=_forward, args=(reading, terminal), daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.write(writing, _STARTED)
        os.close(writing)


def _forward(reading: int, terminal: int) -> None:
    kept: bytes | None = b""
    while block := os.read(reading, 65536):
        if kept is None:
            os.write(terminal, block)
            continue
        greetings, started, rest = (kept + block).partition(_STARTED)
        kept = None if started else greetings[-len(_STARTED) :]
        os.write(terminal, rest)
