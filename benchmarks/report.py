"""``RESULTS.md``: a section for each command that measures, in its place whichever of them ran last."""

from __future__ import annotations

import re
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
SECTIONS = ("bench", "bench-nexmark", "figures")
TITLE = "# Results"


def write_section(command: str, text: str, page: Path = RESULTS) -> None:
    """Put ``text``, which ``make COMMAND`` has written, into the page; the other commands' sections stay."""
    sections = _sections(page.read_text() if page.exists() else "") | {command: text.strip()}
    parts = [f"{_mark(name)}\n\n{sections[name]}" for name in SECTIONS if name in sections]
    page.write_text("\n\n".join([TITLE, *parts]) + "\n")


def _sections(page: str) -> dict[str, str]:
    """By command. What stands before the first mark is the first command's: the page had no marks once."""
    pieces = re.split(r"^<!-- make ([\w-]+) -->$", page, flags=re.MULTILINE)
    found = {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}
    before = pieces[0].removeprefix(TITLE).strip()
    return ({SECTIONS[0]: before} if before else {}) | found


def _mark(command: str) -> str:
    return f"<!-- make {command} -->"
