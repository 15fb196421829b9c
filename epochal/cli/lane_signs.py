"""Characters of drawings by lanes, in Unicode, and in ASCII for terminals without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.text import Text

from epochal.drawing.lanes import BLANK, LEFT_OF_RUN, RUN, Cell, Glyph

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")

UNICODE: Mapping[Glyph, str] = {
    Glyph.BLANK: " ",
    Glyph.LINE: "│",
    Glyph.JOIN: "├",
    Glyph.ACROSS: "─",
    Glyph.CROSS: "┼",
    Glyph.TEE: "┴",
    Glyph.END: "╯",
    Glyph.TEE_DOWN: "┬",
    Glyph.BEGIN: "╮",
}

ASCII: Mapping[Glyph, str] = {
    Glyph.BLANK: " ",
    Glyph.LINE: "|",
    Glyph.JOIN: "|",
    Glyph.ACROSS: "-",
    Glyph.CROSS: "+",
    Glyph.TEE: "'",
    Glyph.END: "'",
    Glyph.TEE_DOWN: ".",
    Glyph.BEGIN: ".",
}

_PUNCTUATION = str.maketrans("–→·“”…█", '->|""~#')


def lane_text(cells: Sequence[Cell], item: str, colours: Mapping[str, str], *, ascii_only: bool) -> Text:
    """One row of lanes. ``item``: sign of the item of the row; ``colours``: by name of the line."""
    signs = ASCII if ascii_only else UNICODE
    text = Text()
    for cell, following in pairwise((*cells, BLANK)):
        of_item = cell.glyph is Glyph.ITEM
        colour = colours.get(cell.line or "", "dim")
        text.append(item if of_item else signs[cell.glyph], f"{colour} bold" if of_item else colour)
        joined = cell.glyph in LEFT_OF_RUN and following.glyph in RUN
        text.append(signs[Glyph.ACROSS] if joined else " ", colours.get(following.line or "", "dim"))
    text.right_crop(1)
    return text


def in_ascii(text: Text) -> Text:
    """The text in ASCII; other characters are replaced one by one, so that styles keep their positions."""
    text.plain = text.plain.translate(_PUNCTUATION).encode("ascii", "replace").decode()
    return text
