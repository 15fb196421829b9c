from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from epochal.service.api.access import requires
from epochal.service.api.answers import FILES, answers
from epochal.service.api.context import Node
from epochal.service.api.paging import Paging
from epochal.service.queries.lineage.dot import as_dot
from epochal.service.queries.lineage.service import Wish
from epochal.service.queries.lineage.svg import as_svg
from epochal.wire.lineage import LineageAnswer
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/lineage", tags=["lineage"])

_DRAWN: dict[str, Any] = {"content": {"application/json": {}, "text/vnd.graphviz": {}, "image/svg+xml": {}}}


@router.get("", response_model=LineageAnswer, responses={200: _DRAWN})
@requires(Role.VIEWER)
@answers(*FILES)
def get_lineage(
    name: str,
    page: Paging,
    node: Node,
    format: Annotated[
        Literal["json", "dot", "svg"], Query(description="dot and svg are drawings of the page, always folded.")
    ] = "json",
    fold: Annotated[
        bool, Query(description="Runs of epochs of which there is nothing else to say are one node each.")
    ] = False,
    slices: Annotated[bool, Query(description="With what was read on the way, on every edge.")] = True,
) -> LineageAnswer | Response:
    """Snapshots of the whole tree that the application belongs to, newest first, and how each came from another."""
    if format == "json":
        return node.lineage.read(name, page, Wish(fold, slices))
    drawn = node.lineage.read(name, page, Wish(fold=True, slices=False))
    if format == "dot":
        return Response(as_dot(drawn), media_type="text/vnd.graphviz")
    # Opened by itself in a browser it is a document of this origin: nothing in it may run, or load anything.
    headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    return Response(as_svg(drawn), media_type="image/svg+xml", headers=headers)
