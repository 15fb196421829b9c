"""Examples of refused standing queries, and their page in docs/reference/standing-queries.md."""

from __future__ import annotations

import re
from typing import Final

from epochal.errors import QueryRefused
from epochal.standing_queries.binding import bound
from epochal.standing_queries.refusals import EXAMPLE_COLUMNS, REASONS

_REPEATED: Final = re.compile("⟪(.*?)⟫([0-9]+)")


def split_example(example: str) -> tuple[str, int]:
    """Return the query of an example without its marks, and the position of its refusal, from 0."""
    text = _REPEATED.sub(_written_out, example)
    return text.replace("»", "").replace("«", ""), text.index("»")


def page() -> str:
    """Return the refusals as Markdown: an example and its message for each reason."""
    lines = []
    for reason in REASONS:
        try:
            bound(split_example(reason.example)[0], EXAMPLE_COLUMNS)
        except QueryRefused as refusal:
            shown = _REPEATED.sub(_abridged, reason.example).replace("»", "").replace("«", "")
            lines.append(f"**`{reason.slug}`**\n\n```text\n{shown}\n{refusal.message}\n```\n")
    return "\n".join(lines)


def _written_out(repeated: re.Match[str]) -> str:
    part, times = repeated.groups()
    return "".join(part.replace("#", str(number)) for number in range(1, int(times) + 1))


def _abridged(repeated: re.Match[str]) -> str:
    part, times = repeated.groups()
    first, second = (part.replace("#", str(number)) for number in (1, 2))
    return f"{first}{second} .. [{times} times] .. "
