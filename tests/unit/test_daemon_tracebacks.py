"""Tracebacks of Spark's worker daemon at the end of its workers are removed from the output; all else is kept."""

from __future__ import annotations

import pytest

from epochal.cli.local_spark import without_daemon_tracebacks

TRACEBACK = b"Traceback (most recent call last):\n"
FRAMES = (
    b'  File "/site-packages/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager\n',
    b"    code = worker(sock, authenticated)\n",
    b"           ^^^^^^^^^^^^^^^^^^^^^^^^^^^\n",
    b'  File "/site-packages/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker\n',
    b"    outfile.flush()\n",
)
BROKEN = b"BrokenPipeError: [Errno 32] Broken pipe\n"
DAEMON_TRACEBACK = (TRACEBACK, *FRAMES, BROKEN)
FLUSHING = (b"PySpark daemon failed to flush the output to the worker process:\n", *DAEMON_TRACEBACK, b"\n")
AUTHORS = (
    TRACEBACK,
    b'  File "/home/author/flights.py", line 3, in process\n',
    b"    1 / 0\n",
    b"ZeroDivisionError: oh\n",
)


def filtered(*lines: bytes) -> tuple[bytes, ...]:
    return tuple(without_daemon_tracebacks(lines))


@pytest.mark.parametrize(
    "tracebacks",
    [
        DAEMON_TRACEBACK,
        FLUSHING,
        (*DAEMON_TRACEBACK, *DAEMON_TRACEBACK),
        tuple(line for pair in zip(DAEMON_TRACEBACK, DAEMON_TRACEBACK, strict=True) for line in pair),
        (TRACEBACK, TRACEBACK, *FRAMES, *FRAMES, BROKEN, BROKEN),
        (TRACEBACK, *FRAMES[:2], TRACEBACK, *FRAMES, BROKEN, *FRAMES[2:], BROKEN),
        (FLUSHING[0], FLUSHING[0], *DAEMON_TRACEBACK, *DAEMON_TRACEBACK, b"\n", b"\n"),
    ],
)
def test_daemon_tracebacks_are_removed_also_when_interleaved(tracebacks: tuple[bytes, ...]) -> None:
    printed = b"a task prints\n"
    assert [line for line in filtered(printed, *tracebacks, printed) if line != b"\n"] == [printed, printed]


@pytest.mark.parametrize(
    "lines",
    [
        AUTHORS,
        (b"one\n", *AUTHORS, b"two\n"),
        (*AUTHORS, *AUTHORS),
        (TRACEBACK, b"  half of one\n"),
        (b"  indented\n", b"\n", b"Traceback of the author\n"),
    ],
)
def test_output_of_authors_is_kept(lines: tuple[bytes, ...]) -> None:
    assert filtered(*lines) == lines


def test_lines_are_passed_on_without_waiting_for_the_next() -> None:
    def lines() -> object:
        yield b"now\n"
        raise AssertionError("the next line was awaited")

    assert next(iter(without_daemon_tracebacks(lines()))) == b"now\n"  # type: ignore[arg-type]
