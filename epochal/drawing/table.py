"""HTML tables of rows, in the style of the notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from epochal.drawing.texts import clipped, count, escaped, value

MOST_ROWS, MOST_COLUMNS, LONGEST_VALUE = 50, 25, 120
_CELL = "padding:2px 10px;vertical-align:top;"
_NUMBER = f' style="{_CELL}text-align:right;font-variant-numeric:tabular-nums"'
_TEXT = f' style="{_CELL}text-align:left;max-width:32em;overflow-wrap:anywhere"'


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Any]], *notes: str, keys: int = 0) -> str:
    """A table. At most ``MOST_ROWS`` rows and ``MOST_COLUMNS`` columns are shown, long values are cut, and a note has
    the number of the others. ``keys``: number of leading columns in bold."""
    shown = rows[:MOST_ROWS]
    width = min(len(heads), MOST_COLUMNS)
    numeric = [_numeric(row[index] for row in shown) for index in range(width)]
    aligned = [_NUMBER if each else _TEXT for each in numeric]
    head = "".join(f"<th{aligned[index]}>{escaped(heads[index], 100)}</th>" for index in range(width))
    body = "".join(
        "<tr>"
        + "".join(_cell(row[index], aligned[index], "th" if index < keys else "td") for index in range(width))
        + "</tr>"
        for row in shown
    )
    said = []
    if len(rows) > len(shown):
        said.append(f"{count(len(rows) - len(shown), 'further row')} not shown")
    if len(heads) > width:
        said.append(f"{count(len(heads) - width, 'further column')} not shown")
    said += notes
    below = f'<p style="opacity:0.72;margin:2px 10px">{escaped("; ".join(said))}</p>' if said else ""
    heading = f'<caption style="text-align:left;caption-side:top;padding:2px 10px">{escaped(caption)}</caption>'
    rows_of = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div><table style="border-collapse:collapse">{heading}{rows_of}</table>{below}</div>'


def table_of(
    caption: str, keys: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Any] | None], *notes: str
) -> str:
    """A table of key and value columns by name; rows may have different columns."""
    key_names = list(dict.fromkeys(name for key in keys for name in key))
    value_names = list(dict.fromkeys(name for each in values for name in each or ()))
    rows = [
        [
            *(key.get(name, "") for name in key_names),
            *((of or {}).get(name, "") for name in value_names),
        ]
        for key, of in zip(keys, values, strict=True)
    ]
    return table(caption, [*key_names, *value_names], rows, *notes, keys=len(key_names))


def _cell(of: Any, aligned: str, tag: str) -> str:
    text = value(of)
    quiet = f'<span style="opacity:0.6">{clipped(text, 10)}</span>' if of is None else escaped(text, LONGEST_VALUE)
    return f"<{tag}{aligned}>{quiet}</{tag}>"


def _numeric(values: Any) -> bool:
    known = [each for each in values if each is not None and each != ""]
    return bool(known) and all(isinstance(each, int | float) and not isinstance(each, bool) for each in known)
