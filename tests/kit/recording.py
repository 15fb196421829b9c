"""A pytest plugin and a command: the modules that each test file executes, and the coverage of each package.

``make coverage`` runs the usual tests under coverage.py, in all their Python processes. The context of a process is the
test file that was running when it started; the processes of the tests themselves change theirs from file to file.
``python -m tests.kit.recording`` combines the data, writes ``tests/executed.json``, and prints the coverage by package.

Python workers of a Spark session that several files share belong to the file that started them. Therefore a module that
such a worker executed counts for each file that uses the session.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.kit.change_record import FILE, ROOT, Record, git, written
from tests.kit.workers import SHARED, unit_of

CONTEXT = "EPOCHAL_TEST_FILE"
"""Environment variable with the context of new processes; ``pyproject.toml`` passes it to coverage.py."""
PACKAGES = ("epochal", "service", "backends", "connectors", "migrations")
TASKS = ("epochal/tasks/", "epochal/operators/", "epochal/aggregates/")
"""Folders of modules that Python workers of Spark execute."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Attribute what follows to the file of the test."""
    file = item.path.relative_to(ROOT).as_posix()
    if os.environ.get(CONTEXT, file) != file:
        os.environ[CONTEXT] = file
        import coverage

        if current := coverage.Coverage.current():
            current.switch_context(file)


def executed_by(contexts: Mapping[str, Mapping[int, Iterable[str]]]) -> dict[str, frozenset[str]]:
    """Return the executed files by test file.

    ``contexts``: by executed file, the contexts of each line. A file counts as executed if a line within a function
    was: importing a module executes its other lines.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file, lines in contexts.items():
        within = _lines_of_functions(ROOT / file)
        for line in within.intersection(lines):
            for context in lines[line]:
                found[context.rpartition("|")[2]].add(file)
    return {test: frozenset(files) for test, files in with_shared_tasks(found).items() if (ROOT / test).is_file()}


def with_shared_tasks(executed: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the executed files with those of the Python workers that test files share."""
    shared: defaultdict[str, set[str]] = defaultdict(set)
    for test, files in executed.items():
        shared[unit_of(test)].update(file for file in files if file.startswith(TASKS))
    units = {unit for unit in shared if unit in ("servers", *SHARED) or unit.startswith("spark,")}
    return {
        test: files | shared[unit_of(test)] if unit_of(test) in units else files for test, files in executed.items()
    }


@cache
def _lines_of_functions(path: Path) -> frozenset[int]:
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(line for each in functions for line in range(each.body[0].lineno, (each.end_lineno or 0) + 1))


def by_package(files: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[float, float]]:
    """Return the covered share of lines and of branches, in percent, by top-level package.

    ``files``: summaries of coverage.py's JSON report by file.
    """
    found = {}
    for package in PACKAGES:
        own = [summary for file, summary in files.items() if file.startswith(f"{package}/")]
        shares = [
            100 * sum(each[covered] for each in own) / max(1, sum(each[total] for each in own))
            for covered, total in (("covered_lines", "num_statements"), ("covered_branches", "num_branches"))
        ]
        found[package] = (shares[0], shares[1])
    return found


def main() -> None:
    import coverage

    measured = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    measured.combine(keep=False)
    data = measured.get_data()
    contexts = {
        Path(file).relative_to(ROOT).as_posix(): data.contexts_by_lineno(file)
        for file in data.measured_files()
        if Path(file).is_file()
    }
    FILE.write_text(written(Record(git(ROOT, "rev-parse", "HEAD"), executed_by(contexts))))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        measured.json_report(outfile=str(report))
        files = {file: each["summary"] for file, each in json.loads(report.read_text())["files"].items()}
    for package, (lines, branches) in by_package(files).items():
        print(f"{package:12} {lines:6.2f} % of lines, {branches:6.2f} % of branches")


if __name__ == "__main__":
    main()
