"""``/v1/applications/{name}/queries``: standing queries, and their results."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, status

from epochal.contracts.catalog import QueryCommandKind
from epochal.errors import Conflict, InvalidInput, OptionError, QueryRefused
from epochal.service.api.access import requires
from epochal.service.api.context import Control, Node
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import FILES, answers
from epochal.service.api.parameters import LOOKUP, Paging, Reading
from epochal.service.api.state import Scanning
from epochal.wire.bodies import UtcTime
from epochal.wire.operations import OperationAnswer
from epochal.wire.projects import FullName
from epochal.wire.standing_queries import (
    AddQuery,
    QueryNumber,
    QueryResult,
    QueryResults,
    StandingQueriesAnswer,
    StandingQueryAnswer,
)
from epochal.wire.state import ScannedRow
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/queries", tags=["queries"])


@router.get("")
@requires(Role.VIEWER)
@answers(*FILES)
def list_queries(name: str, node: Node) -> StandingQueriesAnswer:
    """List the standing queries of the latest committed epoch by id, including paused ones.

    A query that was just added or dropped appears or disappears when its epoch has committed.
    """
    return node.standing_queries.all(name)


@router.post("", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.AUTHOR)
@answers(*FILES, QueryRefused, InvalidInput, OptionError, Conflict)
def add_query(name: str, request: AddQuery, control: Control, caller: Caller) -> OperationAnswer:
    """Add a query. It is checked immediately and begins with an epoch opened for it. The operation then succeeds, and
    its `result` has the query's id (`query`) and the `epoch`.

    A refused query (422, `query-refused`) has two more members: `reason`, one of the names listed in
    docs/reference/standing-queries.md, and `position`, the position in the text of the query, counted from 1, or
    null. 409: the
    application is not running, or has the maximum number of queries. The query belongs to the token that adds it.
    """
    return control.queries.add(name, request, caller.name)


@router.get("/{query}")
@requires(Role.VIEWER)
@answers(*FILES)
def get_query(name: str, query: QueryNumber, node: Node) -> StandingQueryAnswer:
    """Return a standing query as of the latest committed epoch. 404 before its first epoch and after its end."""
    return node.standing_queries.one(name, query)


@router.post("/{query}/drop", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*FILES, Conflict)
def drop_query(name: str, query: QueryNumber, control: Control, caller: Caller) -> OperationAnswer:
    """End a query, at an epoch opened for it. Its results are deleted from that epoch on, and its id is never reused.

    Only the owner, the token that added the query, and tokens with the role admin can change it; others get 403. The
    operation fails if the query has ended meanwhile. 409: the application is not running.
    """
    return _change(control, name, query, "drop", caller)


@router.post("/{query}/pause", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*FILES, Conflict)
def pause_query(name: str, query: QueryNumber, control: Control, caller: Caller) -> OperationAnswer:
    """Pause a query, from an epoch opened for it. Open windows are discarded, results are kept. No effect on a
    paused query. Same permissions as `drop`."""
    return _change(control, name, query, "pause", caller)


@router.post("/{query}/resume", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*FILES, Conflict)
def resume_query(name: str, query: QueryNumber, control: Control, caller: Caller) -> OperationAnswer:
    """Resume a query, with the first window whose rows are all still to come; remembered values are discarded. The
    operation fails if the running version no longer has the columns. Same permissions as `drop`."""
    return _change(control, name, query, "resume", caller)


@router.get("/{query}/results")
@requires(Role.VIEWER)
@answers(*LOOKUP)
async def get_results(
    name: FullName,
    query: QueryNumber,
    node: Node,
    scans: Scanning,
    read: Reading,
    page: Paging,
    min_window_end: Annotated[
        UtcTime | None,
        Query(
            description="Only results of windows that end at this time or later, for example of those after the last "
            "window that a caller has read.",
            examples=["2013-01-31T05:15:00Z"],
        ),
    ] = None,
) -> QueryResults:
    """Results of closed windows, by window and group, for the retention time of the application (`keep`).

    `values` has the aggregates by name, and the values of `remember`. `error` explains a null that is not a result or,
    if `values` is null, why the whole window has none.
    """
    operator = (await asyncio.to_thread(node.standing_queries.one, name, query)).operator
    begin = "" if min_window_end is None else f"{query},{quote(min_window_end.isoformat(), safe='')}"
    found = await scans.scan(name, operator, str(query), read, page, begin)
    return QueryResults(
        query=query,
        branch=found.branch,
        epoch=found.epoch,
        items=[_result(row) for row in found.items],
        next_cursor=found.next_cursor,
    )


def _change(control: Control, name: str, query: int, kind: QueryCommandKind, caller: Caller) -> OperationAnswer:
    return control.queries.change(name, query, kind, caller)


def _result(row: ScannedRow) -> QueryResult:
    values = row.value["values"]
    return QueryResult(
        window_start=row.value["window_start"],
        window_end=row.key["window_end"],
        group=json.loads(row.key["group"]),
        values=None if values is None else json.loads(values),
        error=row.value["error"],
        answered_at=row.value["answered_at"],
    )
