"""Parameters that several resources share: ``If-Match``, paging, the snapshot to read from, keys."""

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
            description="Make the change only if the application is at this revision: its `ETag`, in quotation "
            "marks. Otherwise the answer is `precondition-failed` (412), with what has changed. Without "
            "this header, or with `*`, the change is always made."
        ),
    ] = None,
) -> tuple[str, ...] | None:
    if if_match is None or if_match.strip() == "*":
        return None
    found, position = [], 0
    while position < len(if_match):
        tag = _TAGS.match(if_match, position)
        if tag is None:
            raise InvalidInput('If-Match requires an ETag in quotation marks, as returned with the application: "..".')
        if tag[1] is None:  # weak tags never match (RFC 9110, 13.1.1)
            found.append(tag[2])
        position = tag.end()
    return tuple(found)


IfMatch = Annotated[tuple[str, ...] | None, Depends(_revisions)]
"""Acceptable revisions of the application; ``None``: any."""


def etag(revision: str) -> str:
    return f'"{revision}"'


_SUBJECT = ("application", "key", "prefix", "to", "branch", "first", "last", "token", "action", "since", "until")
"""Query parameters that select what a list contains: a cursor is valid only for the same values."""


def _page_request(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=LARGEST_LIMIT, description="Maximum number of items.")] = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None,
        Query(
            max_length=30_000,
            description="`next_cursor` of the previous page of the same list. Cursors are signed and valid only for "
            "the same project, path, `key`, `prefix`, `to`, `application`, `branch`, `first`, `last`, `token`, "
            "`action`, `since` and `until`; others are refused (400 `invalid-cursor`).",
        ),
    ] = None,
) -> PageRequest:
    return PageRequest.of(limit, cursor, CursorSeal(query_node(request).cursor_key.get(), _listing(request)))


def _listing(request: Request) -> tuple[str, ...]:
    """Identity of a list. The path contains the application's full name and the table."""
    query = request.query_params
    subject = [f"{name}={value}" for name in _SUBJECT for value in query.getlist(name)]
    return (project_in(request.scope), request.scope["path"], *subject)


Paging = Annotated[PageRequest, Depends(_page_request)]


def _read_from(
    isolation: Annotated[
        Isolation, Query(description="read_uncommitted: also read epochs that are prepared and not yet committed.")
    ] = "read_committed",
    epoch: Annotated[EpochNumber | None, Query(description="Time travel: this committed epoch.")] = None,
    savepoint: Annotated[Name | None, Query(description="Time travel: this savepoint.")] = None,
    tag: Annotated[Name | None, Query(description="Time travel: the snapshot with this tag.")] = None,
    at: Annotated[
        UtcTime | None,
        Query(
            description="Time travel: the state at this time (with a time zone), which is that of the newest epoch "
            "of the application's lineage committed by then.",
            examples=["2013-01-31T05:15:00Z"],
        ),
    ] = None,
    min_epoch: Annotated[
        EpochNumber | None, Query(description="Earliest acceptable epoch; the call waits for it.")
    ] = None,
    wait_seconds: Annotated[WaitSeconds, Query()] = DEFAULT_WAIT_SECONDS,
) -> ReadFrom:
    return ReadFrom(isolation, epoch, savepoint, tag, at, min_epoch, wait_seconds)


LOOKUP: Errors = (KeyNotFound, InvalidKey, NotYetCommitted, *SNAPSHOT, *FILES)
"""Errors of look-ups."""

Reading = Annotated[ReadFrom, Depends(_read_from)]
Key = Annotated[
    str,
    Query(
        max_length=20_000,
        description="As in the path of a look-up: the values of the key columns in order, separated by commas, each "
        "percent-encoded (in addition to the encoding of the query); null is `%00`. For list and map "
        "state, and for windows, the operator's key alone selects all entries.",
        examples=["JFK,LAX"],
    ),
]
Named = Annotated[
    str, Path(max_length=LONGEST_NAME, description="An epoch, a savepoint, a tag, or `head`.", examples=["12"])
]
