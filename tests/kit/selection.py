"""A pytest plugin: the tests of a change, and a sample of the others, within a time limit (``make test``).

``--change-seconds N`` selects whole test files, in this order, as far as they fit:

1. files of ``tests/unit`` that read the checkout: any changed file can change their result, and they are quick;
2. files that changed, that import a changed file directly, or that name a changed file which is not Python;
3. files that executed a function of a changed file when the coverage was last recorded;
4. a sample of the others, which the seed determines.

A change is what differs from the commit of the record. The summary lists what was left out.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kit.change_record import ROOT, Record, changed_files, imported_files
from tests.kit.lengths import Lengths
from tests.kit.sampling import SEED, STARTING_SECONDS
from tests.kit.workers import cores

COLLECTING_SECONDS = 60.0
"""Time in which the workers of a whole run collect their tests."""
SECONDS_PER_SECOND = 0.8
"""Seconds of tests, as recorded in ``lengths.json``, that one core of a usual run completes per second (measured)."""
_OF_THE_CHECKOUT = re.compile(r"\bROOT\b|\bparents\[")
CHANGED = pytest.StashKey[frozenset[str] | None]()
SELECTION = pytest.StashKey["Selection"]()
LINES = pytest.StashKey[Sequence[str]]()


@dataclass
class Selection:
    """Test files by reason, and the changed files that led to them."""

    changed: int | None = 0
    """Number of changed files; ``None`` if unknown."""
    reading: list[str] = field(default_factory=list)
    importing: list[str] = field(default_factory=list)
    executing: list[str] = field(default_factory=list)
    sampled: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Files of a change that exceed the time limit."""
    not_sampled: int = 0

    @property
    def files(self) -> frozenset[str]:
        return frozenset((*self.reading, *self.importing, *self.executing, *self.sampled))

    def lines(self) -> list[str]:
        """Return the report: what was selected, what was left out, and why."""
        found = [f"{len(self.reading)} test files read the checkout"]
        if self.changed is None:
            found.append("The change is unknown, because Git or the commit of tests/executed.json is missing")
            found.append(f"{len(self.executing)} test files were chosen among all (--seed)")
        else:
            found += [
                f"{self.changed} changed files: {len(self.importing)} test files import or name one, or changed",
                f"{len(self.executing)} other test files executed a changed file when the coverage was recorded",
            ]
        found.append(
            f"{len(self.sampled)} of {len(self.sampled) + self.not_sampled} other test files were sampled (--seed)"
        )
        if self.left_out:
            found.append(f"LEFT OUT, because the time limit is reached: {len(self.left_out)} test files of the change")
            found.extend(f"  {file}" for file in self.left_out)
        found.append("ALL=1 runs everything")
        return found


def select(
    changed: Collection[str] | None,
    reading: Collection[str],
    importing: Collection[str],
    executing: Collection[str],
    lengths: Mapping[str, float],
    limit: float,
    seed: int,
) -> Selection:
    """Return the selected test files.

    ``changed``: changed files; ``None`` if unknown, in which case every test file belongs to the change.
    ``reading``: test files that read the checkout. ``importing``, ``executing``: test files of the change.
    ``lengths``: seconds by test file. ``limit``: seconds of all selected files.
    """
    files = random.Random(seed).sample(sorted(lengths), len(lengths))
    if changed is None:
        executing = files
    result = Selection(None if changed is None else len(changed))
    groups = (
        (reading, result.reading, result.left_out),
        (importing, result.importing, result.left_out),
        (executing, result.executing, result.left_out),
        (files, result.sampled, None),
    )
    seen: set[str] = set()
    for candidates, selected, left_out in groups:
        for file in files:
            if file in seen or file not in candidates:
                continue
            seen.add(file)
            if lengths[file] <= limit:
                limit -= lengths[file]
                selected.append(file)
            elif left_out is None:
                result.not_sampled += 1
            else:
                left_out.append(file)
    result.left_out.sort()
    return result


def importing_files(changed: Collection[str], tests: Collection[str], root: Path = ROOT) -> set[str]:
    """Return the test files that changed, or import or name a changed file, or have a changed ``conftest.py`` above."""
    python = {file for file in changed if file.endswith(".py")}
    names = {Path(file).name for file in changed} - {Path(file).name for file in python}
    folders = {Path(file).parent for file in python if Path(file).name == "conftest.py"}
    found = set()
    for test in tests:
        text = (root / test).read_text()
        if (
            test in changed
            or imported_files(root / test, root) & python
            or folders.intersection(Path(test).parents)
            or any(name in text for name in names)
        ):
            found.add(test)
    return found


def reads_the_checkout(test: str, root: Path = ROOT) -> bool:
    """Return whether the test file checks files of the checkout and not only the modules that it imports."""
    return test.startswith("tests/unit/") and _OF_THE_CHECKOUT.search((root / test).read_text()) is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("epochal").addoption(
        "--change-seconds", type=float, help="run the tests of the change and a sample of the others, within this time"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the changed files to a new xdist worker, so that all workers select alike."""
    if node.config.getoption("change_seconds") is not None:
        if CHANGED not in node.config.stash:
            node.config.stash[CHANGED] = changed_files(Record.read().commit)
        changed = node.config.stash[CHANGED]
        node.workerinput["changed"] = None if changed is None else sorted(changed)


@pytest.hookimpl(trylast=True)  # after the selection by -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seconds = config.getoption("change_seconds")
    if seconds is None:
        return
    changed = _changed(config)
    lengths: defaultdict[str, float] = defaultdict(float)
    for item in items:
        lengths[_file(item)] += Lengths.read().of(item)
    record = Record.read().executed
    selection = select(
        changed,
        {test for test in lengths if reads_the_checkout(test)},
        importing_files(changed or (), lengths),
        {test for test in lengths if record.get(test, frozenset()) & (changed or frozenset())},
        lengths,
        max(0.0, seconds - STARTING_SECONDS - COLLECTING_SECONDS) * cores() * SECONDS_PER_SECOND,
        config.stash[SEED],
    )
    config.stash[SELECTION] = selection
    files = selection.files
    config.hook.pytest_deselected(items=[item for item in items if _file(item) not in files])
    items[:] = [item for item in items if _file(item) in files]


def _changed(config: pytest.Config) -> frozenset[str] | None:
    above: Mapping[str, Any] = getattr(config, "workerinput", {})
    if "changed" in above:
        return None if above["changed"] is None else frozenset(above["changed"])
    return changed_files(Record.read().commit)


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None and SELECTION in session.config.stash:
        output["selection"] = session.config.stash[SELECTION].lines()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the report of a worker; all workers have the same."""
    lines = getattr(node, "workeroutput", {}).get("selection")
    if lines:
        node.config.stash[LINES] = lines


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    own = config.stash[SELECTION].lines() if SELECTION in config.stash else None
    if lines := config.stash.get(LINES, own):
        terminalreporter.section("selection of tests")
        for line in lines:
            terminalreporter.line(line)
