from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from epochal.errors import CatalogUnavailable, CatalogVersion, EnvironmentProblem
from epochal.service.api.access import public, requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Node
from epochal.service.catalog.migration import check_current
from epochal.wire.bodies import Answer
from epochal.wire.tokens import Role

router = APIRouter(tags=["health"])


class HealthAnswer(Answer):
    status: Literal["ok"] = "ok"


@router.get("/healthz")
@public
async def healthz() -> HealthAnswer:
    """The process answers."""
    return HealthAnswer()


@router.get("/readyz")
@public
@answers(CatalogUnavailable, CatalogVersion, EnvironmentProblem)
def readyz(node: Node) -> HealthAnswer:
    """The catalog is reachable, and has this version's tables; the replicas of a query node have been brought to the
    latest epochs since it was started. 503 otherwise."""
    check_current(node.database)
    node.replicas.check_followed()
    return HealthAnswer()


@router.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE_LATEST: {}}}})
@requires(Role.VIEWER)
def metrics(node: Node) -> Response:
    """Prometheus' text format."""
    return Response(node.metrics.render(), media_type=CONTENT_TYPE_LATEST)
