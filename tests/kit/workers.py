"""A pytest plugin: how many workers share a run, and which files go to the same one.

Half of the suite's time is waiting: for servers, other processes, what has to expire. So there are more workers than
cores, as far as there is memory for them. A file goes to one worker as a whole; files that share a server or a JVM
which takes long to start, or which they kill, go to one worker together, one after the other.

Every worker imports every test. In a new checkout modules are compiled before the workers begin.
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
"""A worker may have a Spark session, two JVMs of drivers with their Python workers, Kafka and HDFS."""
SHARED = {
    "hdfs_server": "HdfsServer",
    "kafka_server": "KafkaServer",
    "spark": "SparkSession",
    "new_application": "NewApplication",
    "epochal": "CommandLine",
    "installed": "Installation",
}
"""Fixtures, with their types, of what takes long to start or, as a JVM does, to become fast. A file that asks for
several goes to the first."""
SERVERS = ("hdfs_server", "kafka_server")
"""Many files ask for both, and for ``spark`` besides: on one worker, each of the three is started once for them."""


SINGLE_MODULES = (ROOT / "tests" / "spark", ROOT / "tests" / "spark" / "tasks")


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers(cores: int, memory_bytes: int) -> int:
    return max(1, min(WORKERS_PER_CORE * cores, memory_bytes // BYTES_PER_WORKER))


@cache
def unit_of(file: str) -> str:
    """What goes to one worker together with ``file``, which is relative to the checkout and names its fixtures."""
    path = ROOT / file
    text = path.read_text() if path.is_file() else ""
    asks = (name for name, type in SHARED.items() if f"{name}: {type}" in text or f'("{name}")' in text)
    fixture = next(asks, file)
    # So many tests need Spark that one worker would end long after the others.
    if fixture == "spark":
        return "spark, single modules" if path.parent in SINGLE_MODULES else "spark, other tests"
    return "servers" if fixture in SERVERS else fixture


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Before the workers begin, each of which would compile every module."""
    if sys.dont_write_bytecode:
        return
    linked = [folder.resolve() for folder in (ROOT / "epochal").iterdir() if folder.is_symlink()]
    for folder in (ROOT / "epochal", *linked, ROOT / "examples", ROOT / "benchmarks", ROOT / "tests"):
        # Tests themselves are compiled by pytest, with what their assertions are to say.
        compileall.compile_dir(folder, quiet=2, workers=cores(), rx=re.compile(r"[/\\](test_|conftest)[^/\\]*$"))


def pytest_collectstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Modules and collected tests stay to the end: no collection of garbage has to go through them again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``; ``-n logical`` is one for each core, where tests are to be measured."""
    return cores() if config.getoption("numprocesses") == "logical" else workers(cores(), _memory_bytes())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """``--dist loadfile``."""
    return _ByUnit(config, log) if config.getvalue("dist") == "loadfile" else None


class _ByUnit(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(super()._split_scope(nodeid))


def _memory_bytes() -> int:
    """The machine's, or the container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = Path(limit).read_text().strip() if Path(limit).exists() else ""
        if text.isdigit():
            return min(machine, int(text))
    return machine
