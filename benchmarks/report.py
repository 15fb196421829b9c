"""``RESULTS.md``: a section for each measuring command, in a fixed order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
SECTIONS = (
    *("bench", "bench-chosen", "bench-object-store", "bench-nexmark", "bench-nexmark-flink", "bench-kubernetes"),
    *("figures", "scale"),
)
TITLE = "# Results"

_SECTION = re.compile(r"^<!-- make ([\w-]+) -->$", re.MULTILINE)
_PART = re.compile(r"^<!-- part ([\w-]+) -->$", re.MULTILINE)


def write_section(command: str, text: str, page: Path = RESULTS) -> None:
    """Replace the section of ``make COMMAND`` with ``text``; the sections of other commands stay."""
    sections = _sections(page.read_text() if page.exists() else "") | {command: text.strip()}
    parts = [f"<!-- make {name} -->\n\n{sections[name]}" for name in SECTIONS if sections.get(name)]
    page.write_text("\n\n".join([TITLE, *parts]) + "\n")


def remove_section(command: str, page: Path = RESULTS) -> None:
    """Remove the section of a command, if there is one."""
    write_section(command, "", page)


def written_sections(page: Path = RESULTS) -> set[str]:
    """The commands whose section is on the page."""
    return set(_sections(page.read_text()))


def read_section(command: str, page: Path = RESULTS) -> str:
    """The section of ``make COMMAND``. Raises ``KeyError`` if it is missing."""
    return _sections(page.read_text())[command]


def write_part(
    command: str, name: str, text: str, order: Sequence[str], introduction: str, page: Path = RESULTS
) -> None:
    """Replace the part ``name`` of the command's section, which begins with ``introduction``.

    The other parts that are in ``order`` stay, in that order.
    """
    section = _sections(page.read_text() if page.exists() else "").get(command, "")
    _, parts = _split(section, _PART)
    parts[name] = text.strip()
    kept = [f"<!-- part {each} -->\n\n{parts[each]}" for each in order if each in parts]
    write_section(command, "\n\n".join([introduction.strip(), *kept]), page)


def write_block(page: Path, name: str, text: str) -> None:
    """Replace the text of a generated block of another page, between ``<!-- NAME -->`` and ``<!-- end of NAME -->``.

    Raises ``ValueError`` if the page has no such block.
    """
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{page} has no block between {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")


def _sections(page: str) -> dict[str, str]:
    """Sections by command. Text before the first mark belongs to the first command."""
    before, found = _split(page, _SECTION)
    before = before.removeprefix(TITLE).strip()
    return ({SECTIONS[0]: before} if before else {}) | found


def _split(text: str, mark: re.Pattern[str]) -> tuple[str, dict[str, str]]:
    """The text before the first mark, and the texts after each mark by its name."""
    before, *pieces = mark.split(text)
    return before.strip(), {name: piece.strip() for name, piece in zip(pieces[::2], pieces[1::2], strict=True)}
