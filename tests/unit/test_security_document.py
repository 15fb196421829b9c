"""Each promise in SECURITY.md names existing tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def promises() -> list[tuple[str, str]]:
    """Pairs of a promise and the cell with its tests."""
    text = (ROOT / "SECURITY.md").read_text()
    section = text.split("## What is promised, and the test of it")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(row[0], row[-1]) for row in rows[1:]]


@pytest.mark.parametrize(("promise", "tests"), promises())
def test_every_promise_names_existing_tests(promise: str, tests: str) -> None:
    named = _TEST.findall(tests)
    assert named, promise
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert name in names if name else any(found.startswith("test_") for found in names), f"{path}::{name}"


def test_the_table_of_promises_is_not_empty() -> None:
    assert len(promises()) > 20
