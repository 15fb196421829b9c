"""A SparkSession for one command of this process, quiet."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from epochal.contracts.configuration import Configuration
from epochal.engine.session import create_session, launch_jvm

_STARTED = b"epochal: the JVM has started\n"


_TRACEBACK = b"Traceback (most recent call last):"


_FLUSHING = b"PySpark daemon failed to flush the output to the worker process:"


@contextmanager
def local_spark(application: str, configuration: Configuration) -> Iterator[SparkSession]:
    """Start Spark, stop it at the end. Raises ``EnvironmentProblem`` when it cannot start."""
    session = start_local_spark(application, configuration)
    try:
        yield session
    finally:
        with suppress(Exception):  # it may have died, which is no reason to hide what this command has to say
            session.stop()


def start_local_spark(application: str, configuration: Configuration) -> SparkSession:
    """Raises ``EnvironmentProblem`` when it cannot start."""
    if os.environ.get("EPOCHAL_DEBUG"):
        return _started(application, configuration)
    chosen = configuration.model_copy(update={"spark": {"spark.log.level": "OFF"} | configuration.spark})
    with quiet_start():
        return _started(application, chosen)


def _started(application: str, configuration: Configuration) -> SparkSession:
    # Out of reach of signals to this process's group: they ask for an orderly stop, which needs the JVM. It ends with
    # this process all the same, when its standard input does. Where it cannot be launched, create_session tries again,
    # and says what is wrong.
    with suppress(Exception):
        launch_jvm(application, configuration, start_new_session=True)
    return create_session(application, configuration)


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
    """Without the tracebacks of Spark's worker daemon, whose pipe is closed when a task has raised, or a worker idled.

    The author's own exception comes through the engine, with the lines that matter. Workers end at the same time, and
    write their lines in between each other's: a block ends with as many exceptions as it has tracebacks.
    """
    held: list[bytes] = []
    unended = 0
    for line in lines:
        if line.startswith(_TRACEBACK):
            unended += 1
        elif not unended and not line.startswith(_FLUSHING):
            yield from held
            held = []
            yield line
            continue
        elif unended and not line.startswith((b" ", b"\n", _FLUSHING)):
            unended -= 1
        held.append(line)
        if not unended and line != held[0]:
            yield from () if _is_farewell(held) else held
            held = []
    yield from held


def _is_farewell(block: Sequence[bytes]) -> bool:
    frames = [line for line in block if line.startswith(b"  File ")]
    return all(b"pyspark/daemon.py" in frame for frame in frames)
