"""Example messages in the tables of the pages under docs/, for comparison with the actual messages."""

from __future__ import annotations

import re
from collections.abc import Collection

from tests.service.end_to_end.blocks import ROOT


def documented(page: str, before: str) -> list[str]:
    """Return the examples in the last column of the first table after the text ``before``."""
    return [example for row in rows_of(page, before) for example in re.findall(r"`([^`]+)`", row[-1])]


def rows_of(page: str, before: str) -> list[list[str]]:
    """Return the cells of that table, without its header."""
    text = (ROOT / "docs" / page).read_text()
    table = re.search(r"(?:^\|.*\n)+", text[text.index(before) :], re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip()[1:-1].split(" | ")] for line in table.group().splitlines()[2:]]


def shows(example: str, messages: Collection[str]) -> bool:
    """Check whether one of the messages matches the example, in which ``..`` stands for any text."""
    pattern = ".*".join(re.escape(part.strip()) for part in example.split(".."))
    return any(re.match(pattern, message) for message in messages)
