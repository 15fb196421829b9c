"""Each guarantee in SECURITY.md names existing tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def guarantees() -> list[tuple[str, str]]:
    """Each guarantee with the cell of its tests."""
    text = (ROOT / "SECURITY.md").read_text()
    section = text.split("\n## Guarantees and their tests\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [(row[0], row[-1]) for row in rows if row[0] != "guarantee"]


@pytest.mark.parametrize(("guarantee", "tests"), guarantees())
def test_guarantees_name_existing_tests(guarantee: str, tests: str) -> None:
    named = _TEST.findall(tests)
    assert named, guarantee
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert name in names if name else any(found.startswith("test_") for found in names), f"{path}::{name}"


def test_guarantees_are_parsed() -> None:
    assert len(guarantees()) > 50
