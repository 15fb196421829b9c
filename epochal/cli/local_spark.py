"""A local SparkSession for one command, without Spark's start-up messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from epochal.background.task import BackgroundTask
from epochal.contracts.configuration import Configuration
from epochal.engine.session import create_session, launch_jvm

_STARTED = b"epochal: the JVM has started\n"


_TRACEBACK = b"Traceback (most recent call last):"


_FLUSHING = b"PySpark daemon failed to flush the output to the worker process:"


@contextmanager
def local_spark(application: str, configuration: Configuration) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end. Raises ``EnvironmentProblem`` if it cannot start."""
    session = start_local_spark(application, configuration)
    try:
        yield session
    finally:
        with suppress(Exception):  # the JVM may have terminated
            session.stop()


def start_local_spark(application: str, configuration: Configuration) -> SparkSession:
    """Start Spark. Raises ``EnvironmentProblem`` if it cannot start."""
    if os.environ.get("EPOCHAL_DEBUG"):
        return _started(application, configuration)
    chosen = configuration.model_copy(update={"spark": {"spark.log.level": "OFF"} | configuration.spark})
    with quiet_start():
        return _started(application, chosen)


def _started(application: str, configuration: Configuration) -> SparkSession:
    # A session of its own protects the JVM from signals to this process group, since an orderly stop needs the JVM. The
    # JVM ends when its standard input is closed. If the launch fails, create_session repeats it and reports the error.
    with suppress(Exception):
        launch_jvm(application, configuration, start_new_session=True)
    return create_session(application, configuration)


@contextmanager
def quiet_start() -> Iterator[None]:
    """Drop the standard error of processes started in the block until its end, then forward it."""
    sys.stderr.flush()
    terminal = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    BackgroundTask("standard-error", lambda: _forward(reading, terminal))
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
        for line in without_daemon_tracebacks(stream):
            os.write(terminal, line)


def without_daemon_tracebacks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Remove tracebacks of Spark's worker daemon, whose pipe is closed when a task has raised or a worker was idle.

    The engine reports the author's exception. Workers may end at the same time and interleave their lines: a block ends
    with as many exceptions as it has tracebacks.
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
            yield from () if _is_daemon_traceback(held) else held
            held = []
    yield from held


def _is_daemon_traceback(block: Sequence[bytes]) -> bool:
    frames = [line for line in block if line.startswith(b"  File ")]
    return all(b"pyspark/daemon.py" in frame for frame in frames)
