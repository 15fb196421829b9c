"""A pytest plugin: the number of workers of a run, and the assignment of files to workers.

Half of the suite's time is spent waiting for servers, other processes and timeouts. Therefore there are more workers
than cores, as far as memory permits. All tests of a file run on one worker. Files that share a server or JVM with a
long start-up time, or that kill it, run on one worker, one after the other.

Every worker imports every test. In a new checkout the modules are compiled before the workers begin.
"""

from __future__ import annotations

import compileall
import gc
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[2]
WORKERS_PER_CORE = 2
BYTES_PER_WORKER = 4 << 30
"""A worker can have a Spark session, two driver JVMs with their Python workers, Kafka and HDFS."""
SHARED = {
    "hdfs_server": "HdfsServer",
    "kafka_server": "KafkaServer",
    "spark": "SparkSession",
    "new_application": "NewApplication",
    "epochal": "CommandLine",
    "installed": "Installation",
    "page": "Page",
    "new_plane": "ControlPlane",
}
"""Fixtures, with their types, that start slowly, use something that does or, like a JVM, need to warm up. A file with
several of them belongs to the first."""
SERVERS = ("hdfs_server", "kafka_server")
"""Many files use both, and ``spark`` too. On one worker, each of the three is started once for all of them."""


SINGLE_MODULES = (ROOT / "tests" / "spark", ROOT / "tests" / "spark" / "tasks")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers(cores: int, memory_bytes: int) -> int:
    return max(1, min(WORKERS_PER_CORE * cores, memory_bytes // BYTES_PER_WORKER))


@cache
def unit_of(file: str) -> str:
    """Return the scheduling unit of ``file``: a shared fixture that its text names, or the file itself.

    ``file`` is relative to the checkout.
    """
    path = ROOT / file
    text = path.read_text() if path.is_file() else ""
    asks = (name for name, type in SHARED.items() if f"{name}: {type}" in text or f'("{name}")' in text)
    fixture = next(asks, file)
    # Spark tests are split: one worker with all of them would end long after the others.
    if fixture == "spark":
        return "spark, single modules" if path.parent in SINGLE_MODULES else "spark, other tests"
    return "servers" if fixture in SERVERS else fixture


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Compile the modules before the workers begin; otherwise each worker would compile all of them."""
    if sys.dont_write_bytecode:
        return
    linked = [folder.resolve() for folder in (ROOT / "epochal").iterdir() if folder.is_symlink()]
    for folder in (ROOT / "epochal", *linked, ROOT / "examples", ROOT / "benchmarks", ROOT / "tests"):
        # pytest compiles the tests, with its rewritten assertions.
        compileall.compile_dir(folder, quiet=2, workers=cores(), rx=re.compile(r"[/\\](test_|conftest)[^/\\]*$"))


def pytest_collectstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests, which live until the end, from garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the workers for ``-n auto``. ``-n logical`` has one worker per core, for measurements."""
    return cores() if config.getoption("numprocesses") == "logical" else workers(cores(), _memory_bytes())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Use the scheduler of this plugin for ``--dist loadfile``."""
    return _ByUnit(config, log) if config.getvalue("dist") == "loadfile" else None


class _ByUnit(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(super()._split_scope(nodeid))


def _memory_bytes() -> int:
    """Return the memory of the machine, or the container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(limit).read_text().strip() if Path(limit).exists() else ""
        if text.isdigit():
            return min(machine, int(text))
    return machine
