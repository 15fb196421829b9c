"""Messages that the pages under docs/ show as examples in their tables, to be compared with those that really come."""

from __future__ import annotations

import re
from collections.abc import Collection

from tests.service.end_to_end.blocks import ROOT


def documented(page: str, before: str) -> list[str]:
    """The examples in the last column of the first table after the text ``before``."""
    return [example for row in rows_of(page, before) for example in re.findall(r"`([^`]+)`", row[-1])]


def rows_of(page: str, before: str) -> list[list[str]]:
    """The cells of that table, without its head."""
    text = (ROOT / "docs" / page).read_text()
    table = re.search(r"(?:^\|.*\n)+", text[text.index(before) :], re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip()[1:-1].split(" | ")] for line in table.group().splitlines()[2:]]


def shows(example: str, messages: Collection[str]) -> bool:
    """Whether one of the messages is as the example says, which leaves out what ``..`` stands for."""
    pattern = ".*".join(re.escape(part.strip()) for part in example.split(".."))
    return any(re.match(pattern, message) for message in messages)
