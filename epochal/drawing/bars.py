"""Bars of text: a chart of columns, and a single horizontal bar."""

from __future__ import annotations

from collections.abc import Sequence

_LOWER = " ▁▂▃▄▅▆▇█"
_LEFT = " ▏▎▍▌▋▊▉█"


def columns(values: Sequence[float | None], height: int, most: float, *, ascii_only: bool = False) -> list[str]:
    """Lines of a chart, top first, with one column for each value from 0 to ``most``. A value above 0 is always
    visible; ``None`` leaves its column empty."""
    steps = 1 if ascii_only else 8
    levels = [_level(value, most, height * steps) for value in values]
    lines = []
    for line in reversed(range(height)):
        filled = (min(steps, max(0, level - line * steps)) for level in levels)
        lines.append("".join((" #" if ascii_only else _LOWER)[level] for level in filled))
    return lines


def bar(part: float, width: int, *, ascii_only: bool = False) -> str:
    """A bar of ``width`` characters that is filled to ``part`` (0 to 1). A part above 0 is always visible."""
    steps = 1 if ascii_only else 8
    level = _level(part, 1.0, width * steps)
    full, rest = divmod(level, steps)
    text = ("#" if ascii_only else "█") * full + ("" if rest == 0 else _LEFT[rest])
    return text.ljust(width)


def _level(value: float | None, most: float, steps: int) -> int:
    if value is None or value <= 0 or most <= 0:
        return 0
    return max(1, min(steps, round(value / most * steps)))
