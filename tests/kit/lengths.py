"""How long tests take, from ``lengths.json``: seconds of a usual and of a ``long`` test of each file, on average.

A pytest plugin too: ``--write-lengths`` writes the file anew, from a run on two quiet cores (``make lengths``).
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
"""What takes less on average does not stand in the file."""
UNKNOWN = {USUAL: SHORTEST, LONG: 60.0}


@dataclass(frozen=True)
class Lengths:
    """``averages``: by file, relative to the checkout, and kind."""

    averages: Mapping[str, Mapping[str, float]]

    @staticmethod
    @cache
    def read() -> Lengths:
        return Lengths(json.loads(FILE.read_text()))

    def of(self, item: pytest.Item) -> float:
        """How many seconds the test takes, about."""
        kind = LONG if item.get_closest_marker("long") else USUAL
        file = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
        return self.averages.get(file, UNKNOWN).get(kind, UNKNOWN[kind])


class Writer:
    """Collects what each test took, set-up and end included."""

    def __init__(self) -> None:
        self._seconds: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = LONG if "long" in report.keywords else USUAL
        self._seconds[report.nodeid.partition("::")[0], kind][report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        # What this run did not run stays as it is known.
        averages = {file: dict(kinds) for file, kinds in Lengths.read().averages.items() if (ROOT / file).exists()}
        for (file, kind), seconds in self._seconds.items():
            averages.setdefault(file, {})[kind] = round(sum(seconds.values()) / len(seconds), 2)
        FILE.write_text(written(averages))


def written(averages: Mapping[str, Mapping[str, float]]) -> str:
    """The text of the file."""
    worthwhile = {
        file: {kind: seconds for kind, seconds in kinds.items() if seconds >= SHORTEST}
        for file, kinds in sorted(averages.items())
    }
    lines = (f"  {json.dumps(file)}: {json.dumps(kinds)}" for file, kinds in worthwhile.items() if kinds)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("epochal").addoption("--write-lengths", action="store_true", help="write tests/lengths.json anew")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("write_lengths") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that all workers end at about the same time."""
    lengths = Lengths.read()
    units: defaultdict[str, float] = defaultdict(float)
    for item in items:
        units[_unit(item)] += lengths.of(item)
    items.sort(key=lambda item: (-units[_unit(item)], _unit(item), str(item.path)))


def _unit(item: pytest.Item) -> str:
    return unit_of(item.nodeid.partition("::")[0])
