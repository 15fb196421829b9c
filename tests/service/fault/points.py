"""The declared fault points, and the test of each. A fault point without a test proves nothing.

Most are hit by tests of this folder, which kill drivers and tasks there with real servers; the others by the tests
in :data:`TESTED_ELSEWHERE`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from types import ModuleType
from typing import Any

import pytest

from epochal.faults import FaultPoint, declared

SINKS_CRASH = "tests/spark/contract/test_sinks_crash.py"
SINKS_AFTER_ROLLBACK = "tests/spark/contract/test_sinks_after_rollback.py"
RECONFIGURATION = "tests/service/reconfiguration/test_killed.py"
MOVING = "tests/service/fault/test_rollback_and_move_kills.py"
ARTIFACTS = "tests/service/test_artifacts.py"
DELIVERIES = "tests/unit/test_deliveries.py"
ADDED_COLUMNS = "tests/unit/backends/test_added_columns.py"
CONTROL_PLANE = "tests/service/fault/test_control_plane.py"

TESTED_ELSEWHERE: Mapping[str, str] = {
    "T3.loop.records-durable": "tests/simulation/test_loops.py",
    "E1.queries-written": "tests/service/fault/test_event_time_kills.py",
    # Only a decision of an admin leads there.
    "E5.given-up": "tests/unit/test_engine_transactions.py",
    "E1.assembled": RECONFIGURATION,
    "E1.drained": RECONFIGURATION,
    "E1.taken-over": RECONFIGURATION,
    "E1.switched": RECONFIGURATION,
    "E1.decided": RECONFIGURATION,
    "E1.reverted": RECONFIGURATION,
    "R1.files.inherited": SINKS_AFTER_ROLLBACK,
    "R1.files.moved-aside": SINKS_AFTER_ROLLBACK,
    "R1.files.moved-back": SINKS_AFTER_ROLLBACK,
    "R1.hdfs.inherited": SINKS_AFTER_ROLLBACK,
    "R1.hdfs.moved-aside": SINKS_AFTER_ROLLBACK,
    "R1.hdfs.moved-back": SINKS_AFTER_ROLLBACK,
    "R1.objects.inherited": SINKS_AFTER_ROLLBACK,
    "R1.objects.abandoned": SINKS_AFTER_ROLLBACK,
    "R1.objects.noted": SINKS_AFTER_ROLLBACK,
    "R1.objects.moved-aside": SINKS_AFTER_ROLLBACK,
    "R1.objects.moved-back": SINKS_AFTER_ROLLBACK,
    "R1.postgresql.swept-branch": SINKS_AFTER_ROLLBACK,
    "R1.table.columns-read": ADDED_COLUMNS,
    "R1.table.columns-added": ADDED_COLUMNS,
    "T3.table.uploaded": SINKS_CRASH,
    "T3.iceberg.uploaded": SINKS_CRASH,
    "T3.dead-letters.pre-committed": "tests/unit/test_dead_letters.py",
    "T3.dbms.direct-applied": DELIVERIES,
    "T3.dbms.direct-committed": DELIVERIES,
    "calls.written": "tests/service/test_inboxes.py",
    "calls.landed": "tests/service/test_inboxes.py",
    "file.intended": ARTIFACTS,
    "file.written": ARTIFACTS,
    "file.deleted": ARTIFACTS,
    "artifact.given-up": ARTIFACTS,
}
"""The test that kills or crashes at each point."""
BY_PREFIX: Mapping[str, str] = {
    "catalog.": CONTROL_PLANE,
    "E5.table.": SINKS_CRASH,
    "export.": MOVING,
    "import.": MOVING,
    "rollback.": MOVING,
    "rekey.": "tests/service/reconfiguration/test_rekey_killed.py",
}

LOG_POINTS = ("T3.log.segment-durable", "E5.log.removed")
"""Points of the write-ahead log, which the sinks of Kafka and DBMS share."""


def points_of(*packages: ModuleType) -> list[str]:
    """The points that modules of the packages declare, without those tested elsewhere."""
    found = set()
    for package in packages:
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            values = vars(import_module(module.name)).values()
            found |= {value.name for value in values if isinstance(value, FaultPoint)}
    return sorted(name for name in found if covered_in(name) is None)


def in_every_run(usual: Collection[object], every: Iterable[object]) -> list[Any]:
    """The parameters ``every``; those that are not ``usual`` are marked ``long``.

        ``usual``: one point of each class of effect, and points at which no other test crashes. At the others, the
    simulations and the tests of sinks crash in every run (``tests/spark/contract/test_sinks_crash.py`` and the files
    that it names); the run of all tests kills a real process there.
    """
    parameters = list(every)
    assert set(usual) <= set(parameters), "unknown parameters in usual"
    return [pytest.param(each, marks=() if each in usual else pytest.mark.long, id=str(each)) for each in parameters]


def covered_in(name: str) -> str | None:
    """The file that tests a point, unless a driver or a task is killed there."""
    by_prefix = (file for prefix, file in BY_PREFIX.items() if name.startswith(prefix))
    return TESTED_ELSEWHERE.get(name) or next(by_prefix, None)


def all_declared(*packages: ModuleType) -> set[str]:
    """Every fault point that is declared below the packages."""
    for package in packages:
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return set(declared())


def is_named_in(name: str, file: str) -> bool:
    """Check whether the file contains the name of the point, or of the constant with that name."""
    text = Path(file).read_text()
    step, _, rest = name.partition(".")
    constant = f"{step}_{rest}".replace("-", "_").replace(".", "_").upper()
    return name in text or constant in text
