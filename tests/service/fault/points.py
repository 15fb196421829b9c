"""Which fault points there are, and where each is met: a point that no test comes to promises what nobody has seen.

Most are met here, where drivers and tasks are killed at them with real servers; the rest where :data:`ELSEWHERE` says.
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

AFTER_A_ROLLBACK = "tests/spark/contract/test_sinks_after_rollback.py"
RECONFIGURATION = "tests/service/reconfiguration/test_killed.py"
MOVING = "tests/service/fault/test_going_back_and_moving.py"
ARTIFACTS = "tests/service/test_artifacts.py"
DELIVERIES = "tests/unit/test_deliveries.py"
CONTROL_PLANE = "tests/service/fault/test_control_plane.py"

ELSEWHERE: Mapping[str, str] = {
    "T3.loop.records-durable": "tests/simulation/test_loops.py",
    "E1.queries-written": "tests/service/fault/test_event_time_kills.py",
    # Only an administrator brings an epoch there.
    "E5.given-up": "tests/unit/test_engine_transactions.py",
    "E1.assembled": RECONFIGURATION,
    "E1.drained": RECONFIGURATION,
    "E1.taken-over": RECONFIGURATION,
    "E1.switched": RECONFIGURATION,
    "E1.decided": RECONFIGURATION,
    "E1.reverted": RECONFIGURATION,
    "R1.files.inherited": AFTER_A_ROLLBACK,
    "R1.files.moved-aside": AFTER_A_ROLLBACK,
    "R1.files.moved-back": AFTER_A_ROLLBACK,
    "R1.hdfs.inherited": AFTER_A_ROLLBACK,
    "R1.hdfs.moved-aside": AFTER_A_ROLLBACK,
    "R1.hdfs.moved-back": AFTER_A_ROLLBACK,
    "R1.postgresql.swept-branch": AFTER_A_ROLLBACK,
    "T3.dbms.direct-applied": DELIVERIES,
    "T3.dbms.direct-committed": DELIVERIES,
    "calls.written": "tests/service/test_inboxes.py",
    "calls.landed": "tests/service/test_inboxes.py",
    "file.intended": ARTIFACTS,
    "file.written": ARTIFACTS,
    "file.deleted": ARTIFACTS,
    "artifact.given-up": ARTIFACTS,
}
"""Point -> the test that kills or crashes there."""
BY_PREFIX: Mapping[str, str] = {
    "catalog.": CONTROL_PLANE,
    "export.": MOVING,
    "import.": MOVING,
    "rollback.": MOVING,
    "rekey.": "tests/service/reconfiguration/test_offline_killed.py",
}

OF_THE_LOG = ("T3.log.segment-durable", "E5.log.removed")
"""Of the write-ahead log, which Kafka's sink and the DBMS's share."""


def points_of(*packages: ModuleType) -> list[str]:
    """The points that the packages' own modules declare, without what is met elsewhere."""
    found = set()
    for package in packages:
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            values = vars(import_module(module.name)).values()
            found |= {value.name for value in values if isinstance(value, FaultPoint)}
    return sorted(name for name in found if where(name) is None)


def in_every_run(usual: Collection[object], every: Iterable[object]) -> list[Any]:
    """The parameters ``every``, of which those that are not ``usual`` are ``long``.

    ``usual``: one of each class of effect, and what nothing else crashes at. At the others the simulations crash in
    every run, and the sinks alone (``tests/spark/contract/test_sinks_crash.py`` and what that names); the run of
    all tests kills a real process there.
    """
    parameters = list(every)
    assert set(usual) <= set(parameters), "what every run tests is not there"
    return [pytest.param(each, marks=() if each in usual else pytest.mark.long, id=str(each)) for each in parameters]


def where(name: str) -> str | None:
    """The file that meets a point, when it is not met by a driver or a task that is killed there."""
    by_prefix = (file for prefix, file in BY_PREFIX.items() if name.startswith(prefix))
    return ELSEWHERE.get(name) or next(by_prefix, None)


def all_declared(*packages: ModuleType) -> set[str]:
    """Every point that is declared below the packages."""
    for package in packages:
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return set(declared())


def is_named_in(name: str, file: str) -> bool:
    """Whether the file says the point's name, or the constant that holds it."""
    text = Path(file).read_text()
    step, _, rest = name.partition(".")
    constant = f"{step}_{rest}".replace("-", "_").replace(".", "_").upper()
    return name in text or constant in text
