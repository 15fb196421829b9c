"""Parts of SVG drawings for notebooks: the frame, texts and colours.

Text and lines have the colour of the surrounding text (``currentColor``), because a notebook's theme may differ from
the system's. Accents are readable on light and dark backgrounds. Drawings contain no ids, style sheets or scripts, so
that notebooks that sanitize HTML show them, and several drawings in one page do not interfere.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from epochal.drawing.texts import clipped, escaped

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
ACCENTS = ("#3b82f6", "#d97706", "#16a34a", "#b45cd6", "#0e94a3", "#e0567a")
QUIET = 0.72
"""Opacity of text of lesser importance."""
CHARACTER = 0.56
"""Mean width of a character, as a part of the size of the font."""


def document(width: float, height: float, title: str, parts: Iterable[str], style_sheet: str = "") -> str:
    """An SVG element that shrinks to the width of the page. ``title``: its name for screen readers; ``style_sheet``:
    only for standalone files, because the rules of one within a page apply to the whole page."""
    size = f'width="{ceil(width)}" height="{ceil(height)}" viewBox="0 0 {ceil(width)} {ceil(height)}"'
    style = f'style="max-width:100%;height:auto;font-family:{FONT}"'
    heading = f"<title>{escaped(title)}</title>" + (f"<style>{style_sheet}</style>" if style_sheet else "")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" fill="currentColor" {style}>'
        f"{heading}{''.join(parts)}</svg>"
    )


def text(
    x: float,
    y: float,
    of: str,
    *,
    most: int = 500,
    size: float = 12,
    quiet: bool = False,
    bold: bool = False,
    anchor: str = "start",
) -> str:
    """A line of text with the baseline ``y``, of at most ``most`` characters."""
    options = f' text-anchor="{anchor}"' if anchor != "start" else ""
    options += ' font-weight="600"' if bold else ""
    options += f' fill-opacity="{QUIET}"' if quiet else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{options}>{escaped(of, most)}</text>'


def width_of(of: str, size: float = 12) -> float:
    """Approximate width of a text in pixels. Characters outside Latin scripts count double."""
    return sum(1.0 if ord(sign) < 0x250 else 1.8 for sign in clipped(of, 500)) * size * CHARACTER
