"""``/v1/applications/{name}/state``: tables, point look-ups, batch look-ups, scans, history. Also available while
the application is stopped."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import from_json

from epochal.errors import NotYetCommitted
from epochal.service.api.access import requires, unmetered
from epochal.service.api.context import query_node
from epochal.service.api.lookup_bodies import (
    ARROW_ANSWER,
    JSON,
    arrow,
    batch_body,
    batch_stream,
    matches,
    point_body,
    point_headers,
    raw,
    scan_stream,
    takes_arrow,
)
from epochal.service.api.openapi import FILES, answers, body_of
from epochal.service.api.parameters import LOOKUP, Key, Paging, Reading
from epochal.service.domain.pages import cut
from epochal.service.domain.snapshots import ReadFrom
from epochal.service.queries.state.histories import Histories
from epochal.service.queries.state.lookups import Lookups, TableStatus
from epochal.service.queries.state.scans import Scans
from epochal.service.queries.state.window_lookups import pane_note
from epochal.service.runtime.metrics import POINT_ROUTE
from epochal.wire.bodies import Page
from epochal.wire.history import Blame, KeyHistory
from epochal.wire.projects import FullName
from epochal.wire.state import (
    MOST_KEYS,
    LookupRequest,
    Scan,
    StateColumn,
    StateKind,
    StateLookup,
    StateScope,
    StateTableAnswer,
    StateValue,
    ValueColumn,
)
from epochal.wire.tokens import Role

router = APIRouter(tags=["state"])

_SLASH = re.compile("/|%2F", re.IGNORECASE)
"""Encoded slashes separate segments of a path, too, except within the key."""
_SLASHES_BEFORE_KEY = 7  # /v1/applications/{name}/state/{table}/keys/{key}


def _lookups(request: Request) -> Lookups:
    node = query_node(request)
    return Lookups(node.replicas, node.snapshots)


Looking = Annotated[Lookups, Depends(_lookups)]


@router.get("/v1/applications/{name}/state", summary="State tables of the latest committed epoch")
@requires(Role.VIEWER)
@answers(NotYetCommitted, *FILES)
async def tables(name: FullName, lookups: Looking, page: Paging) -> Page[StateTableAnswer]:
    after = page.after(str)
    statuses = sorted(await lookups.tables(name), key=lambda status: status.table.id)
    rest = [status for status in statuses if after is None or status.table.id > after[0]]
    part = cut(rest[: page.limit + 1], page, lambda status: [status.table.id])
    return Page(items=[_view(status) for status in part.rows], next_cursor=part.next_cursor)


@router.get(
    POINT_ROUTE,
    summary="Look up one key",
    response_model=StateValue,
    responses={304: {"description": "The value matches If-None-Match."}},
)
@requires(Role.VIEWER)
@unmetered
@answers(*LOOKUP)
async def point(
    request: Request,
    name: FullName,
    table: str,
    key: str,
    lookups: Looking,
    read: Reading,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """`key`: the values of the key columns in order, separated by commas, each percent-encoded (`JFK,LAX`). For list
    and map state, and for windows, the operator's key alone selects all entries. Overlapping windows are stored as
    panes, from which a look-up computes the open windows, by `window_start`, with `window_end` in the value. The header
    `Epochal-Epoch` has the epoch that was read.

    For partial state, values and maps, the own key alone (`gin`; nothing for a value) selects that of all instances.

    Null is `%00`: `JFK,%00`. A text of one zero character is therefore available only with `POST ../lookup`, where null
    is `null`. Clients and proxies may change the keys `.` and `..`, the empty text and keys with `/` in a path, also
    percent-encoded: `GET ../keys?key=..` and `POST ../lookup` accept every key.
    """
    return await _point(name, table, _path_key(request, key), lookups, read, if_none_match)


@router.get(
    "/v1/applications/{name}/state/{table}/keys",
    summary="Look up one key given as a query parameter",
    response_model=StateValue,
    responses={304: {"description": "The value matches If-None-Match."}},
)
@requires(Role.VIEWER)
@unmetered
@answers(*LOOKUP)
async def point_by_query(
    name: FullName,
    table: str,
    key: Key,
    lookups: Looking,
    read: Reading,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Like the look-up by path. Clients and proxies do not change query parameters: `?key=..`, `?key=a%252Fb`."""
    return await _point(name, table, key, lookups, read, if_none_match)


async def _point(
    name: str, table: str, key: str, lookups: Lookups, read: ReadFrom, if_none_match: str | None
) -> Response:
    answer = await lookups.point(name, table, key, read)
    headers = point_headers(answer)
    if matches(if_none_match, answer.etag):
        return raw(b"", headers, 304)
    return raw(point_body(table, answer, read.isolation), headers)


@router.post(
    "/v1/applications/{name}/state/{table}/lookup",
    summary="Look up several keys in one epoch",
    response_model=StateLookup,
    responses=ARROW_ANSWER,
    openapi_extra=body_of(LookupRequest),
)
@requires(Role.VIEWER)
@unmetered
@answers(*LOOKUP)
async def batch(request: Request, name: FullName, table: str, lookups: Looking) -> Response:
    """With `Accept: application/vnd.apache.arrow.stream`, the answer is an Arrow stream: one row for each key, in
    order. The first column shows whether the key exists (`_found`); the value's columns follow in their own types,
    null for a missing key. The schema's metadata has `table`, `branch`, `epoch` and `isolation` and, if the JSON
    answer has it, `since` as JSON text. Overlapping windows, and all instances of partial state, are available only
    as JSON."""
    # Parsing ten thousand keys takes milliseconds: not in the event loop.
    body = await asyncio.to_thread(_parsed, await request.body())
    if takes_arrow(request):
        found = await lookups.batch_columns(name, table, body.keys, _read_from(body))
        stream = await asyncio.to_thread(batch_stream, table, found, body.isolation)
        return arrow(stream)
    answer = await lookups.batch(name, table, body.keys, _read_from(body))
    return raw(batch_body(table, answer, body.isolation), [(b"content-type", JSON)])


def _parsed(body: bytes) -> LookupRequest:
    try:
        return _plain(body) or LookupRequest.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in error.errors()]) from error


def _plain(body: bytes) -> LookupRequest | None:
    """Parse like the model, but without checking each value of each key. ``None``: something may be wrong, and the
    model reports it."""
    try:
        document = from_json(body)
        keys = document.pop("keys")
        if type(keys) is list and len(keys) <= MOST_KEYS and set(map(type, keys)) <= {dict}:
            return LookupRequest(keys=[], **document).model_copy(update={"keys": keys})
    except (ValueError, TypeError, AttributeError, KeyError):
        pass
    return None


def _path_key(request: Request, key: str) -> str:
    """The key as sent: in decoded form, a comma inside a value could not be distinguished from a separator."""
    raw: Any = request.scope.get("raw_path")
    if not raw:
        return key
    return _SLASH.split(raw.decode("latin-1"), _SLASHES_BEFORE_KEY)[-1]


def _view(status: TableStatus) -> StateTableAnswer:
    table, at = status.table, status.at
    return StateTableAnswer(
        table=table.id,
        operator=table.operator,
        kind=StateKind(table.kind),
        scope=StateScope(table.scope),
        key=[StateColumn(**dict(column)) for column in table.key],
        sub_key=[StateColumn(**dict(column)) for column in table.entry_key],
        value=[
            *(ValueColumn(**dict(column), internal=column.name in table.partials) for column in table.visible),
            *(
                ValueColumn(name=column.name, type=column.type, since=table.since(column.name))
                for column in table.shown
            ),
        ],
        queryable=table.queryable,
        rows=status.rows,
        branch=at.branch if at else None,
        epoch=at.epoch if at else None,
        note=pane_note(table),
    )


def _read_from(body: LookupRequest) -> ReadFrom:
    return ReadFrom(body.isolation, body.epoch, body.savepoint, body.tag, body.at, body.min_epoch, body.wait_seconds)


def _scans(request: Request) -> Scans:
    node = query_node(request)
    return Scans(node.replicas, node.snapshots)


def _histories(request: Request) -> Histories:
    node = query_node(request)
    return Histories(node.store, node.snapshots)


Scanning = Annotated[Scans, Depends(_scans)]
LookingBack = Annotated[Histories, Depends(_histories)]
Prefix = Annotated[
    str,
    Query(
        max_length=20_000,
        description="Only keys with these leading columns, written as in a key; the last value, if it is text, may "
        "end with `*`: `JFK`, `JFK,L*`. Null is `%00`.",
    ),
]


@router.get(
    "/v1/applications/{name}/state/{table}/scan",
    summary="Rows in key order",
    response_model=Scan,
    responses=ARROW_ANSWER,
)
@requires(Role.VIEWER)
@answers(*LOOKUP)
async def scan(
    request: Request, name: FullName, table: str, scans: Scanning, read: Reading, page: Paging, prefix: Prefix = ""
) -> Scan | Response:
    """All pages are of one epoch: that of the first page, chosen by the other parameters.

    With `Accept: application/vnd.apache.arrow.stream`, the page is an Arrow stream with the columns of key and value in
    their own types. The schema's metadata has `table`, `branch`, `epoch` and `isolation`; if present, the `note`,
    `since` as JSON text and, except on the last page, the `next_cursor`.
    """
    if takes_arrow(request):
        found = await scans.columns(name, table, prefix, read, page)
        return arrow(await asyncio.to_thread(scan_stream, table, found, read.isolation))
    return await scans.scan(name, table, prefix, read, page)


@router.get("/v1/applications/{name}/state/{table}/history", summary="History of a key, newest change first")
@requires(Role.VIEWER)
@answers(*LOOKUP)
def history(name: FullName, table: str, histories: LookingBack, read: Reading, page: Paging, key: Key) -> KeyHistory:
    """Changes of a key, also across forks and rollbacks, in the lineage of the chosen snapshot. A write that left
    the row unchanged is not a change."""
    return histories.history(name, table, key, read, page)


@router.get("/v1/applications/{name}/state/{table}/blame", summary="Epoch that last changed a key")
@requires(Role.VIEWER)
@answers(*LOOKUP)
def blame(name: FullName, table: str, histories: LookingBack, read: Reading, key: Key) -> Blame:
    """The epoch with its input (files, offsets), code version, parameters and commit time."""
    return histories.blame(name, table, key, read)
