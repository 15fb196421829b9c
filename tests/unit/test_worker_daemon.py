"""The worker daemon as Spark starts it: without other threads, or replaced by Spark's own daemon."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochal.engine.worker_daemon import MODULE, SPARKS_OWN, WITHOUT_THREADS

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted on Linux only")


@contextmanager
def daemon(environment: Mapping[str, str]) -> Iterator[Path]:
    """Start the daemon; yields its folder in /proc after it has printed its port."""
    inherited = {name: value for name, value in os.environ.items() if name not in WITHOUT_THREADS}
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**inherited, **environment},
    )
    assert process.stdin is not None and process.stdout is not None
    (port,) = struct.unpack("!i", process.stdout.read(4))
    assert 0 < port < 65536
    yield Path(f"/proc/{process.pid}")
    process.stdin.close()  # as Spark does to end the daemon, which exits with code 1
    process.wait(30)


def command(process: Path) -> list[str]:
    return (process / "cmdline").read_text().split("\0")


def test_imports_start_no_thread_before_workers_are_forked() -> None:
    with daemon({}) as process:
        assert MODULE in command(process)
        assert len(list((process / "task").iterdir())) == 1


@pytest.mark.parametrize("setting", ["OPENBLAS_NUM_THREADS=2", "JE_ARROW_MALLOC_CONF=background_thread:true"])
def test_sparks_own_daemon_runs_if_a_library_would_start_threads(setting: str) -> None:
    name, _, value = setting.partition("=")
    with daemon({name: value}) as process:
        assert SPARKS_OWN in command(process) and MODULE not in command(process)
        assert len(list((process / "task").iterdir())) == 1
