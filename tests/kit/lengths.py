"""Test durations from ``lengths.json``: average seconds of a usual and of a ``long`` test, by file.

Also a pytest plugin: ``--write-lengths`` rewrites the file, from a run on two idle cores (``make lengths``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.kit.workers import unit_of

FILE = Path(__file__).parents[1] / "lengths.json"
ROOT = FILE.parents[1]
USUAL, LONG = "usual", "long"
SHORTEST = 0.05
"""Minimum average in the file, in seconds; shorter ones are omitted."""
UNKNOWN = {USUAL: SHORTEST, LONG: 60.0}


@dataclass(frozen=True)
class Lengths:
    """``averages``: average seconds by file, relative to the checkout, and by kind."""

    averages: Mapping[str, Mapping[str, float]]

    @staticmethod
    @cache
    def read() -> Lengths:
        return Lengths(json.loads(FILE.read_text()))

    def of(self, item: pytest.Item) -> float:
        """Return the approximate duration of the test in seconds."""
        kind = LONG if item.get_closest_marker("long") else USUAL
        file = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
        return self.averages.get(file, UNKNOWN).get(kind, UNKNOWN[kind])


class Writer:
    """Collects the duration of each test, including set-up and tear-down."""

    def __init__(self) -> None:
        self._seconds: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = LONG if "long" in report.keywords else USUAL
        self._seconds[report.nodeid.partition("::")[0], kind][report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        # Tests that did not run keep their stored averages.
        averages = {file: dict(kinds) for file, kinds in Lengths.read().averages.items() if (ROOT / file).exists()}
        for (file, kind), seconds in self._seconds.items():
            averages.setdefault(file, {})[kind] = round(sum(seconds.values()) / len(seconds), 2)
        FILE.write_text(written(averages))


def written(averages: Mapping[str, Mapping[str, float]]) -> str:
    """Return the text of the file."""
    worthwhile = {
        file: {kind: seconds for kind, seconds in kinds.items() if seconds >= SHORTEST}
        for file, kinds in sorted(averages.items())
    }
    lines = (f"  {json.dumps(file)}: {json.dumps(kinds)}" for file, kinds in worthwhile.items() if kinds)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("epochal").addoption("--write-lengths", action="store_true", help="update tests/lengths.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("write_lengths") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest units first, so that all workers end at about the same time."""
    lengths = Lengths.read()
    units: defaultdict[str, float] = defaultdict(float)
    for item in items:
        units[_unit(item)] += lengths.of(item)
    items.sort(key=lambda item: (-units[_unit(item)], _unit(item), str(item.path)))


def _unit(item: pytest.Item) -> str:
    return unit_of(item.nodeid.partition("::")[0])
