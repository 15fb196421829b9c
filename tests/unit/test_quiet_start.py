"""What Spark's worker daemon says when its workers end is left out; all else that tasks write is passed on."""

from __future__ import annotations

import pytest

from epochal.cli.local_spark import without_worker_farewells

TRACEBACK = b"Traceback (most recent call last):\n"
FRAMES = (
    b'  File "/site-packages/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager\n',
    b"    code = worker(sock, authenticated)\n",
    b"           ^^^^^^^^^^^^^^^^^^^^^^^^^^^\n",
    b'  File "/site-packages/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker\n',
    b"    outfile.flush()\n",
)
BROKEN = b"BrokenPipeError: [Errno 32] Broken pipe\n"
FAREWELL = (TRACEBACK, *FRAMES, BROKEN)
FLUSHING = (b"PySpark daemon failed to flush the output to the worker process:\n", *FAREWELL, b"\n")
AUTHORS = (
    TRACEBACK,
    b'  File "/home/author/flights.py", line 3, in process\n',
    b"    1 / 0\n",
    b"ZeroDivisionError: oh\n",
)


def kept(*lines: bytes) -> tuple[bytes, ...]:
    return tuple(without_worker_farewells(lines))


@pytest.mark.parametrize(
    "farewells",
    [
        FAREWELL,
        FLUSHING,
        (*FAREWELL, *FAREWELL),
        tuple(line for pair in zip(FAREWELL, FAREWELL, strict=True) for line in pair),
        (TRACEBACK, TRACEBACK, *FRAMES, *FRAMES, BROKEN, BROKEN),
        (TRACEBACK, *FRAMES[:2], TRACEBACK, *FRAMES, BROKEN, *FRAMES[2:], BROKEN),
        (FLUSHING[0], FLUSHING[0], *FAREWELL, *FAREWELL, b"\n", b"\n"),
    ],
)
def test_workers_farewells_are_left_out_also_in_between_each_other(farewells: tuple[bytes, ...]) -> None:
    said = b"a task prints\n"
    assert [line for line in kept(said, *farewells, said) if line != b"\n"] == [said, said]


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
def test_what_authors_write_is_passed_on(lines: tuple[bytes, ...]) -> None:
    assert kept(*lines) == lines


def test_lines_are_passed_on_as_they_come() -> None:
    def lines() -> object:
        yield b"now\n"
        raise AssertionError("the next line was awaited")

    assert next(iter(without_worker_farewells(lines()))) == b"now\n"  # type: ignore[arg-type]
