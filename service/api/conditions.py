"""``If-Match``: a change is made only of what its caller has seen."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header

from epochal.errors import InvalidInput

_TAGS = re.compile(r'\s*(W/)?"([\x21\x23-\x7e]*)"\s*(?:,|$)')


async def _revisions(
    if_match: Annotated[
        str | None,
        Header(
            description="The change is made only when the application is at this revision: its `ETag`, in quotation "
            "marks. Otherwise `precondition-failed` (412) says what has changed. Without it, or with `*`: always."
        ),
    ] = None,
) -> tuple[str, ...] | None:
    if if_match is None or if_match.strip() == "*":
        return None
    found, position = [], 0
    while position < len(if_match):
        tag = _TAGS.match(if_match, position)
        if tag is None:
            raise InvalidInput('If-Match takes an ETag in quotation marks, as the application answers it: "..".')
        if tag[1] is None:  # weak ones never match (RFC 9110, 13.1.1)
            found.append(tag[2])
        position = tag.end()
    return tuple(found)


IfMatch = Annotated[tuple[str, ...] | None, Depends(_revisions)]
"""The revisions of which the application has to be at one; ``None``: any."""


def etag(revision: str) -> str:
    return f'"{revision}"'
