"""``If-Match``: a change is made only of what its caller has seen."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from epochal.errors import InvalidInput, InvalidKey, NotYetCommitted
from epochal.service.api.context import query_node
from epochal.service.api.openapi import FILES, SNAPSHOT, Errors
from epochal.service.api.project_paths import project_in
from epochal.service.domain.pages import DEFAULT_LIMIT, LARGEST_LIMIT, CursorSeal, PageRequest
from epochal.service.domain.snapshots import ReadFrom
from epochal.service.queries.state.lookups import KeyNotFound
from epochal.wire.bodies import EpochNumber, Name, UtcTime
from epochal.wire.snapshots import LONGEST_NAME
from epochal.wire.state import DEFAULT_WAIT_SECONDS, Isolation, WaitSeconds

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


_SUBJECT = ("application", "key", "prefix", "to")
"""Query parameters that choose what a list is about: a cursor is good for the same values only."""


def _page_request(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=LARGEST_LIMIT, description="At most so many items.")] = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None,
        Query(
            max_length=30_000,
            description="`next_cursor` of the previous page of the same list. It is signed, and good for the same "
            "project, path, `key`, `prefix`, `to` and `application`. Another one is refused (400 `invalid-cursor`).",
        ),
    ] = None,
) -> PageRequest:
    return PageRequest.of(limit, cursor, CursorSeal(query_node(request).cursor_key.get(), _listing(request)))


def _listing(request: Request) -> tuple[str, ...]:
    """The path has the full name of the application, and the table."""
    query = request.query_params
    subject = [f"{name}={value}" for name in _SUBJECT for value in query.getlist(name)]
    return (project_in(request.scope), request.scope["path"], *subject)


Paging = Annotated[PageRequest, Depends(_page_request)]


def _read_from(
    isolation: Annotated[
        Isolation, Query(description="read_uncommitted: also epochs that are prepared and not yet committed.")
    ] = "read_committed",
    epoch: Annotated[EpochNumber | None, Query(description="Time travel: this committed epoch.")] = None,
    savepoint: Annotated[Name | None, Query(description="Time travel: this savepoint.")] = None,
    tag: Annotated[Name | None, Query(description="Time travel: the snapshot with this tag.")] = None,
    at: Annotated[
        UtcTime | None,
        Query(
            description="Time travel: the state as it was at this time, with its zone: that of the newest epoch of the "
            "application's lineage that was committed by then.",
            examples=["2013-01-31T05:15:00Z"],
        ),
    ] = None,
    min_epoch: Annotated[EpochNumber | None, Query(description="Not before this epoch; waits for it.")] = None,
    wait_seconds: Annotated[WaitSeconds, Query()] = DEFAULT_WAIT_SECONDS,
) -> ReadFrom:
    return ReadFrom(isolation, epoch, savepoint, tag, at, min_epoch, wait_seconds)


LOOKUP: Errors = (KeyNotFound, InvalidKey, NotYetCommitted, *SNAPSHOT, *FILES)
"""What a look-up can answer, besides the state."""

Reading = Annotated[ReadFrom, Depends(_read_from)]
Key = Annotated[
    str,
    Query(
        max_length=20_000,
        description="As in the path of a look-up: the key columns' values in order, separated by commas, each "
        "percent-encoded (once more than the query itself); null is `%00`. Of list and map state, and of windows, "
        "the operator's key alone means all entries.",
        examples=["JFK,LAX"],
    ),
]
Named = Annotated[
    str, Path(max_length=LONGEST_NAME, description="An epoch, a savepoint, a tag, or `head`.", examples=["12"])
]
