"""``/v1/applications/{name}/state/{table}``: scan, history, blame."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from epochal.service.api.access import requires
from epochal.service.api.answers import answers
from epochal.service.api.context import query_node
from epochal.service.api.lookup_bodies import ARROW_ANSWER, arrow, scan_stream, takes_arrow
from epochal.service.api.paging import Paging
from epochal.service.api.reading import LOOKUP, Key, Reading
from epochal.service.queries.state.histories import Histories
from epochal.service.queries.state.scans import Scans
from epochal.wire.history import Blame, KeyHistory
from epochal.wire.projects import FullName
from epochal.wire.state import Scan
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/state/{table}", tags=["state"])


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


@router.get("/scan", summary="Rows in key order", response_model=Scan, responses=ARROW_ANSWER)
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


@router.get("/history", summary="Every change of a key, newest first")
@requires(Role.VIEWER)
@answers(*LOOKUP)
def history(name: FullName, table: str, histories: LookingBack, read: Reading, page: Paging, key: Key) -> KeyHistory:
    """Also across forks and rollbacks: the lineage of the snapshot that is looked back from. A write that left the
    row as it was is no change."""
    return histories.history(name, table, key, read, page)


@router.get("/blame", summary="The epoch that last changed a key")
@requires(Role.VIEWER)
@answers(*LOOKUP)
def blame(name: FullName, table: str, histories: LookingBack, read: Reading, key: Key) -> Blame:
    """With what it read (files, offsets), its code version and parameters, and when it was committed."""
    return histories.blame(name, table, key, read)
