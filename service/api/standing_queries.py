"""``/v1/applications/{name}/queries``: standing queries, and their results."""

from __future__ import annotations

import asyncio
import json

from fastapi import APIRouter, status

from epochal.contracts.catalog import QueryCommandKind
from epochal.errors import Conflict, InvalidInput, OptionError, QueryRefused
from epochal.service.api.access import requires
from epochal.service.api.context import Control, Node
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import FILES, answers
from epochal.service.api.parameters import LOOKUP, Paging, Reading
from epochal.service.api.state import Scanning
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
    """The standing queries that the latest committed epoch ran with, by id; paused ones as well.

    One that was added or dropped a moment ago is, or is not, among them when its epoch has committed.
    """
    return node.standing_queries.all(name)


@router.post("", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.AUTHOR)
@answers(*FILES, QueryRefused, InvalidInput, OptionError, Conflict)
def add_query(name: str, request: AddQuery, control: Control, caller: Caller) -> OperationAnswer:
    """Begin to answer a query. It is checked at once, and begins with an epoch that is opened for it; the operation has
    succeeded when that is decided, and its `result` has the query's id (`query`) and the `epoch`.

    A query that is refused (422, `query-refused`) has two more members: `reason`, one of the names listed in
    docs/standing-queries.md, and `position`, the character of the text at which it is refused, counted from 1, or null.
    409: the application does not run, or has as many queries as it allows. The query belongs to the token that adds it.
    """
    return control.queries.add(name, request, caller.name)


@router.get("/{query}")
@requires(Role.VIEWER)
@answers(*FILES)
def get_query(name: str, query: QueryNumber, node: Node) -> StandingQueryAnswer:
    """A standing query as the latest committed epoch ran with it. 404 before its first epoch, and when it is gone."""
    return node.standing_queries.one(name, query)


@router.post("/{query}/drop", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*FILES, Conflict)
def drop_query(name: str, query: QueryNumber, control: Control, caller: Caller) -> OperationAnswer:
    """End a query, at an epoch that is opened for it. Its results are gone from that epoch on, and its id is never used
    again.

    A query is changed by its owner, which is the token that has added it, and by tokens with the role admin; others get
    403. The operation fails if the query has ended meanwhile. 409: the application does not run.
    """
    return _change(control, name, query, "drop", caller)


@router.post("/{query}/pause", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*FILES, Conflict)
def pause_query(name: str, query: QueryNumber, control: Control, caller: Caller) -> OperationAnswer:
    """Stop answering, from an epoch on that is opened for it. Windows that have not closed are forgotten, results stay.
    Nothing happens to one that is paused. `drop` says who may."""
    return _change(control, name, query, "pause", caller)


@router.post("/{query}/resume", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.OPERATOR)
@answers(*FILES, Conflict)
def resume_query(name: str, query: QueryNumber, control: Control, caller: Caller) -> OperationAnswer:
    """Answer again, beginning with the first window of which every row is still to come; what it remembered is
    forgotten. The operation fails where the running version has not the columns any more. `drop` says who may."""
    return _change(control, name, query, "resume", caller)


@router.get("/{query}/results")
@requires(Role.VIEWER)
@answers(*LOOKUP)
async def get_results(
    name: FullName, query: QueryNumber, node: Node, scans: Scanning, read: Reading, page: Paging
) -> QueryResults:
    """Results of windows that have closed, by window and group, for as long as the application keeps them (`keep`).

    `values` has the aggregates by name, and what `remember` gives; `error` says why one of them is null that would not
    be otherwise, or, where `values` is null, why the whole window has no result.
    """
    operator = (await asyncio.to_thread(node.standing_queries.one, name, query)).operator
    found = await scans.scan(name, operator, str(query), read, page)
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
