"""``/v1/applications/{name}/state``: tables, point look-ups, batch look-ups. They answer also while it is stopped."""

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
from epochal.service.api.openapi import FILES, answers
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
"""Also one that is encoded separates the segments of a path, but for those of the key."""
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
    summary="Look one key up",
    response_model=StateValue,
    responses={304: {"description": "The value is the one that If-None-Match names."}},
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
    """`key`: the key columns' values in order, separated by commas, each percent-encoded (`JFK,LAX`). Of list and map
    state, and of windows, the operator's key alone gives all entries. Windows that overlap are kept as panes, of which
    a look-up makes the open windows: by `window_start`, with `window_end` in the value. The header `Epochal-Epoch` says
    which epoch answered.

    Of partial state, values and maps, the own key alone (`gin`, nothing of a value) is that of all instances.

    Null is `%00`: `JFK,%00`. The text of one zero character is therefore only found by `POST ../lookup`, where null is
    `null`. The keys `.` and `..`, the empty text and keys with `/` do not survive in a path everywhere, since clients
    and proxies resolve them, also percent-encoded: `GET ../keys?key=..` and `POST ../lookup` take every key."""
    return await _point(name, table, _path_key(request, key), lookups, read, if_none_match)


@router.get(
    "/v1/applications/{name}/state/{table}/keys",
    summary="Look one key up that a path might not carry",
    response_model=StateValue,
    responses={304: {"description": "The value is the one that If-None-Match names."}},
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
    """As with the key in the path; no client or proxy changes what stands in a query: `?key=..`, `?key=a%252Fb`."""
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
    summary="Look many keys up, all in one epoch",
    response_model=StateLookup,
    responses=ARROW_ANSWER,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": LookupRequest.model_json_schema()}},
        }
    },
)
@requires(Role.VIEWER)
@unmetered
@answers(*LOOKUP)
async def batch(request: Request, name: FullName, table: str, lookups: Looking) -> Response:
    """With `Accept: application/vnd.apache.arrow.stream` the answer is an Arrow stream: a row for each key, in their
    order, first whether there is one (`_found`), then the value's columns in their own types, null where there is none.
    The schema's metadata say `table`, `branch`, `epoch` and `isolation`, and, where the JSON answer has it, `since` as
    JSON text. Of windows that overlap, and of all instances of partial state, there is JSON alone."""
    # Ten thousand keys take milliseconds to parse: not here, where other look-ups would wait for it.
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
    """As the model reads it, but for a look at each value of each key, of which it knows nothing; ``None``: where there
    may be something wrong, the model says what it is."""
    try:
        document = from_json(body)
        keys = document.pop("keys")
        if type(keys) is list and len(keys) <= MOST_KEYS and set(map(type, keys)) <= {dict}:
            return LookupRequest(keys=[], **document).model_copy(update={"keys": keys})
    except (ValueError, TypeError, AttributeError, KeyError):
        pass
    return None


def _path_key(request: Request, key: str) -> str:
    """The key as it was sent: decoded, a comma inside a value could not be told from one between values."""
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
        description="Only keys with these leading columns, written as in a key; the last one, if it is text, may end "
        "with `*`: `JFK`, `JFK,L*`. Null is `%00`.",
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
    """All pages are of one epoch: that of the first, which the other parameters choose.

    With `Accept: application/vnd.apache.arrow.stream` the page is an Arrow stream: a row for each, with the columns of
    its key and of its value in their own types. The schema's metadata say `table`, `branch`, `epoch` and `isolation`,
    where there is one the `note`, where the JSON answer has it `since` as JSON text, and unless it is the last page the
    `next_cursor`."""
    if takes_arrow(request):
        found = await scans.columns(name, table, prefix, read, page)
        return arrow(await asyncio.to_thread(scan_stream, table, found, read.isolation))
    return await scans.scan(name, table, prefix, read, page)


@router.get("/v1/applications/{name}/state/{table}/history", summary="Every change of a key, newest first")
@requires(Role.VIEWER)
@answers(*LOOKUP)
def history(name: FullName, table: str, histories: LookingBack, read: Reading, page: Paging, key: Key) -> KeyHistory:
    """Also across forks and rollbacks: the lineage of the snapshot that is looked back from. A write that left the
    row as it was is no change."""
    return histories.history(name, table, key, read, page)


@router.get("/v1/applications/{name}/state/{table}/blame", summary="The epoch that last changed a key")
@requires(Role.VIEWER)
@answers(*LOOKUP)
def blame(name: FullName, table: str, histories: LookingBack, read: Reading, key: Key) -> Blame:
    """With what it read (files, offsets), its code version and parameters, and when it was committed."""
    return histories.blame(name, table, key, read)
