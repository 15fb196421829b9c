"""Health and metrics of this process; the nodes of the catalog."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from epochal.errors import CatalogUnavailable, CatalogVersion, EnvironmentProblem
from epochal.service.api.access import public, requires
from epochal.service.api.context import Node
from epochal.service.api.openapi import answers
from epochal.service.api.parameters import Paging
from epochal.service.catalog.migration import check_current
from epochal.wire.administration import NodeAnswer
from epochal.wire.bodies import Answer, Page
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])
health_router = APIRouter(tags=["health"])


@router.get("")
@requires(Role.VIEWER)
def list_nodes(page: Paging, node: Node) -> Page[NodeAnswer]:
    """List the control planes and query nodes of this catalog, oldest first."""
    return node.nodes.page(page)


class HealthAnswer(Answer):
    status: Literal["ok"] = "ok"


@health_router.get("/healthz")
@public
async def healthz() -> HealthAnswer:
    """Liveness: the process answers."""
    return HealthAnswer()


@health_router.get("/readyz")
@public
@answers(CatalogUnavailable, CatalogVersion, EnvironmentProblem)
def readyz(node: Node) -> HealthAnswer:
    """Readiness: the catalog is reachable and has this version's tables; the replicas of a query node have caught up
    since it was started. 503 otherwise."""
    check_current(node.database)
    node.replicas.check_followed()
    return HealthAnswer()


@health_router.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE_LATEST: {}}}})
@requires(Role.VIEWER)
def metrics(node: Node) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(node.metrics.render(), media_type=CONTENT_TYPE_LATEST)
