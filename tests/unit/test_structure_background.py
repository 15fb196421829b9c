"""Threads, file locks and repeated calls are in ``epochal/background``; exceptions are listed with a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCTION = ("epochal", "service", "backends", "connectors", "migrations")

THREADS = {
    "epochal/background/service.py": "the library: services",
    "epochal/background/task.py": "the library: tasks",
    "epochal/driver/heartbeat.py": "ends the driver's attempt, and must not repeat a step after that",
    "epochal/testing/kafka_reading.py": "shipped for tests",
    "epochal/testing/servers/proxy.py": "shipped for tests: a thread for each connection",
    "epochal/testing/servers/s3_proxy.py": "shipped for tests: a thread for each connection",
}
FILE_LOCKS = {
    "epochal/background/locks.py": "the library",
    "service/catalog/sqlite_write_queue.py": "a shared lock over a descriptor, which filelock does not support",
}
SLEEPS = {
    "epochal/background/retries.py": "the library",
    "epochal/wire/http.py": "the one loop of calls over HTTP; the policy of the caller names the pauses",
    "epochal/client/operations.py": "polls an operation until it ends, at the interval of the user",
    "epochal/client/events.py": "reconnects a stream, which continues at its last event",
    "epochal/cli/standing_queries.py": "waits for the commit of an epoch",
    "epochal/contracts/inbox.py": "the default of a contract: waits for input",
    "epochal/driver/main.py": "a grace period before the exit, not repeated",
    "epochal/driver/pool_client.py": "tries the control planes in turn",
    "epochal/driver/spare.py": "tries the control planes in turn",
    "epochal/faults.py": "an injected delay",
    "service/catalog/sqlite_write_queue.py": "waits for urgent writers of other processes",
    "service/runtime/launchers/kubernetes/launcher.py": "waits until deleted pods no longer count in the cluster",
    "service/runtime/launchers/processes.py": "waits until the kernel shows the command of a process",
}
"""Modules that sleep, with the reason."""


def uses(pattern: str) -> set[str]:
    """Modules of production code whose text matches; ``epochal/service`` and others are links and are skipped."""
    found = set()
    for folder in PRODUCTION:
        for path in (ROOT / folder).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            inner = name.removeprefix("epochal/")
            if not (name.startswith("epochal/") and inner.startswith(PRODUCTION[1:])) and re.search(
                pattern, path.read_text()
            ):
                found.add(name)
    return found


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [
        (r"\bThread\(", THREADS.keys()),
        (r"\bfcntl\.flock\b|\bimport filelock\b", FILE_LOCKS.keys()),
        (r"\btime\.sleep\(", SLEEPS.keys() | {"epochal/testing"}),
    ],
)
def test_only_listed_modules_use_threads_locks_and_sleeps(pattern: str, listed: set[str]) -> None:
    allowed = tuple(listed)
    assert {name for name in uses(pattern) if not name.startswith(allowed)} == set()


def test_at_most_five_modules_outside_of_the_library_start_threads() -> None:
    others = {name for name in uses(r"\bThread\(") if not name.startswith("epochal/background/")}
    assert len(others) <= 5
