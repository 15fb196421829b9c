"""Spark's JVM says much on the standard error that it inherits; authors want to see what their tasks print."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_STARTED = b"epochal: the JVM has started\n"
_TRACEBACK = b"Traceback (most recent call last):"


@contextmanager
def quiet_start() -> Iterator[None]:
    """What processes started in the block write to standard error is dropped until its end, then passed on."""
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
        os.write(writing, b"\n" + _STARTED)
        os.close(writing)


def _forward(reading: int, terminal: int) -> None:
    with os.fdopen(reading, "rb", buffering=0) as stream:
        for line in stream:
            if line == _STARTED:
                break
        for line in without_worker_farewells(stream):
            os.write(terminal, line)


def without_worker_farewells(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Without the tracebacks of Spark's worker daemon, whose pipe is closed when a task has raised.

    The author's own exception comes through the engine, with the lines that matter.
    """
    held: list[bytes] = []
    for line in lines:
        if held:
            held.append(line)
            if line.startswith(b" "):
                continue
            frames = [kept for kept in held if kept.startswith(b"  File ")]
            if not all(b"pyspark/daemon.py" in frame for frame in frames):
                yield from held
            held = []
        elif line.startswith(_TRACEBACK):
            held = [line]
        else:
            yield line
    yield from held
