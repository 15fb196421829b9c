"""Changed files of this checkout, and the product modules that each test file executes.

``tests/executed.json`` records the modules, with the commit at which they were recorded; ``make coverage`` writes it.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "executed.json"
LINKED = ("service", "backends", "connectors", "migrations")
"""Packages that are links within ``epochal``: ``service/app.py`` is the module ``epochal.service.app``."""


@dataclass(frozen=True)
class Record:
    """``executed``: by test file, the files of the product and of ``tests/kit`` of which it executed a function.

    ``commit``: the commit at which the run took place.
    """

    commit: str
    executed: Mapping[str, frozenset[str]]

    @staticmethod
    @cache
    def read() -> Record:
        """Return the stored record."""
        return parsed(FILE.read_text())


def parsed(text: str) -> Record:
    """Return the record of the text that ``written`` returned."""
    stored = json.loads(text)
    files: list[str] = stored["files"]

    def named(bits: int) -> frozenset[str]:
        return frozenset(file for number, file in enumerate(files) if bits >> number & 1)

    return Record(stored["commit"], {test: named(int(bits, 16)) for test, bits in stored["executed"].items()})


def written(record: Record) -> str:
    """Return the record as text: one line per test file, with a bit for each executed file, in hexadecimal."""
    files = sorted(frozenset().union(*record.executed.values()))
    positions = {file: number for number, file in enumerate(files)}
    lines = (
        f"    {json.dumps(test)}: {json.dumps(f'{sum(1 << positions[file] for file in executed):x}')}"
        for test, executed in sorted(record.executed.items())
    )
    head = f'{{\n  "commit": {json.dumps(record.commit)},\n  "files": {json.dumps(files)},\n  "executed": {{\n'
    return head + ",\n".join(lines) + "\n  }\n}\n"


def changed_files(commit: str, root: Path = ROOT) -> frozenset[str] | None:
    """Return the files that differ from ``commit``, uncommitted and new ones included.

    ``None``: unknown, because Git or the commit is missing.
    """
    try:
        differing = git(root, "diff", "--name-only", "--no-renames", commit, "--").splitlines()
        new = git(root, "ls-files", "--others", "--exclude-standard").splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(differing) | frozenset(new)


def git(root: Path, *arguments: str) -> str:
    """Run Git in ``root``, as a person of the tests, and return its output. Raises ``CalledProcessError``."""
    person = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", root, *person, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def imported_files(path: Path, root: Path = ROOT) -> frozenset[str]:
    """Return the files of the product and of the tests that the module at ``path`` imports directly."""
    return frozenset(_files(_imported_modules(ast.parse(path.read_text())), root))


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(modules: Iterator[str], root: Path) -> Iterator[str]:
    for module in modules:
        parts = module.split(".")
        if parts[0] == "epochal" and parts[1:2] and parts[1] in LINKED:
            parts = parts[1:]
        for file in (Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")):
            if (root / file).is_file():
                yield file.as_posix()
