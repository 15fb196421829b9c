"""Fenced code blocks of the project's Markdown pages, with their line numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """``language`` is ``python``, ``console`` and so on; ``line`` counts from 1."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a console block, without their comments."""
        lines = [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]
        return [line.split("  #")[0].split("    #")[0].strip() for line in lines]

    @property
    def code(self) -> object:
        """The block compiled so that tracebacks show line numbers of the page."""
        return compile("\n" * self.line + self.text, str(ROOT / self.page), "exec")


def blocks_of(page: str, language: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in _BLOCK.finditer(text)
        if match[1] == language
    ]
