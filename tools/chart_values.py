"""Table of the chart's values. ``python -m tools.chart_values`` writes it to ``helm/README.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HELM = Path(__file__).parents[1] / "helm"
VALUES = HELM / "epochal" / "values.yaml"
PAGE = HELM / "README.md"
WHOLE = {"resources"}
"""Sections that are shown as one value: objects of Kubernetes."""


@dataclass(frozen=True)
class Value:
    """``path``: ``control.replicas``, ``kubernetes.projects[].namespace``. ``section``: contains other values."""

    path: str
    default: Any
    comment: str
    section: bool


def documented_values(sections: bool = False) -> list[Value]:
    """All values, and with ``sections`` also their sections."""
    text = VALUES.read_text()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    return [value for value in _values(root, "", text.splitlines()) if sections or not value.section]


def table() -> str:
    rows = ["| value | default | |", "|---|---|---|"]
    for value in documented_values(sections=True):
        default = "" if value.section else f"`{json.dumps(value.default)}`"
        path = f"**`{value.path}`**" if value.section else f"`{value.path}`"
        rows.append(f"| {path} | {default} | {value.comment.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def _values(node: yaml.MappingNode, above: str, lines: list[str]) -> Iterator[Value]:
    for key, below in node.value:
        path = f"{above}{key.value}"
        comment = _comment(lines, key.start_mark.line, key.start_mark.column)
        if isinstance(below, yaml.MappingNode) and below.value and key.value not in WHOLE:
            yield Value(path, None, comment, True)
            yield from _values(below, f"{path}.", lines)
        elif isinstance(below, yaml.SequenceNode) and any(isinstance(each, yaml.MappingNode) for each in below.value):
            yield Value(path, None, comment, True)
            yield from _values(below.value[0], f"{path}[].", lines)
        else:
            yield Value(path, yaml.SafeLoader("").construct_object(below, deep=True), comment, False)


def _comment(lines: list[str], line: int, column: int) -> str:
    """The comment directly above a key, in the same column."""
    found: list[str] = []
    for above in reversed(lines[:line]):
        match = re.fullmatch(r"(?P<before>[ ]*(?:- )?)# ?(?P<said>.*)", above)
        if match is None or len(match["before"]) != column:
            break
        found.insert(0, match["said"].strip())
    return " ".join(found)


if __name__ == "__main__":
    page = PAGE.read_text()
    begin = page.index("| value | default | |")
    end = page.find("\n\n", begin)
    rest = "" if end < 0 else page[end + 1 :]
    PAGE.write_text(page[:begin] + table() + rest)
