"""``/v1/applications/{name}/snapshots/{snapshot}/diff``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from epochal.errors import NotYetCommitted
from epochal.service.api.access import requires
from epochal.service.api.answers import FILES, SNAPSHOT, answers
from epochal.service.api.context import query_node
from epochal.service.api.paging import Paging
from epochal.service.api.reading import Named
from epochal.service.queries.diffs import DiffService
from epochal.wire.history import DiffRows, SnapshotDiff
from epochal.wire.projects import FullName
from epochal.wire.snapshots import LONGEST_NAME
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/snapshots/{snapshot}/diff", tags=["snapshots"])


def _diffs(request: Request) -> DiffService:
    node = query_node(request)
    return DiffService(node.database, node.snapshots, node.store)


Comparing = Annotated[DiffService, Depends(_diffs)]
To = Annotated[
    str,
    Query(
        max_length=LONGEST_NAME,
        description="An epoch, a savepoint, a tag, or `head`; of another application of the lineage `NAME:EPOCH`.",
        examples=["14", "again:9", "head"],
    ),
]


@router.get("", summary="What is different in another snapshot")
@requires(Role.VIEWER)
@answers(*SNAPSHOT, *FILES, NotYetCommitted)
def diff(name: FullName, snapshot: Named, to: To, diffs: Comparing) -> SnapshotDiff:
    """Code, parameters, what was read between, and how many keys of each state table are different; also across forks
    and rollbacks."""
    return diffs.summary(name, snapshot, to)


@router.get("/{table}", summary="The rows of a state table that are different")
@requires(Role.VIEWER)
@answers(*SNAPSHOT, *FILES, NotYetCommitted)
def diff_rows(name: FullName, snapshot: Named, table: str, to: To, diffs: Comparing, page: Paging) -> DiffRows:
    """In key order, with the values in both snapshots."""
    return diffs.rows(name, snapshot, to, table, page)
