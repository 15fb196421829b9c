"""``RESULTS.md``: a section for each command that measures, in its place whichever of them ran last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
SECTIONS = ("bench", "bench-nexmark", "bench-kubernetes", "figures", "scale")
TITLE = "# Results"

_SECTION = re.compile(r"^<!-- make ([\w-]+) -->$", re.MULTILINE)
_PART = re.compile(r"^<!-- part ([\w-]+) -->$", re.MULTILINE)


def write_section(command: str, text: str, page: Path = RESULTS) -> None:
    """Put ``text``, which ``make COMMAND`` has written, into the page; the other commands' sections stay."""
    sections = _sections(page.read_text() if page.exists() else "") | {command: text.strip()}
    parts = [f"<!-- make {name} -->\n\n{sections[name]}" for name in SECTIONS if name in sections]
    page.write_text("\n\n".join([TITLE, *parts]) + "\n")


def read_section(command: str, page: Path = RESULTS) -> str:
    """The section that ``make COMMAND`` has written. Raises ``KeyError`` where there is none."""
    return _sections(page.read_text())[command]


def write_part(
    command: str, name: str, text: str, order: Sequence[str], introduction: str, page: Path = RESULTS
) -> None:
    """Put ``text`` into the part ``name`` of the command's section, which begins with ``introduction``.

    Its other parts stay, of those that ``order`` has, and in that order.
    """
    section = _sections(page.read_text() if page.exists() else "").get(command, "")
    _, parts = _split(section, _PART)
    parts[name] = text.strip()
    kept = [f"<!-- part {each} -->\n\n{parts[each]}" for each in order if each in parts]
    write_section(command, "\n\n".join([introduction.strip(), *kept]), page)


def _sections(page: str) -> dict[str, str]:
    """By command. What stands before the first mark is the first command's: the page had no marks once."""
    before, found = _split(page, _SECTION)
    before = before.removeprefix(TITLE).strip()
    return ({SECTIONS[0]: before} if before else {}) | found


def _split(text: str, mark: re.Pattern[str]) -> tuple[str, dict[str, str]]:
    """What stands before the first mark, and by name what follows each."""
    before, *pieces = mark.split(text)
    return before.strip(), {name: piece.strip() for name, piece in zip(pieces[::2], pieces[1::2], strict=True)}
