from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from epochal.errors import CatalogUnavailable, CatalogVersion
from epochal.service.api.access import public, requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Control
from epochal.service.catalog.migration import check_current
from epochal.wire.bodies import Answer
from epochal.wire.scopes import Scope

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
@answers(CatalogUnavailable, CatalogVersion)
def readyz(control: Control) -> HealthAnswer:
    """The catalog is reachable, and has this version's tables. 503 otherwise."""
    check_current(control.database)
    return HealthAnswer()


@router.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE_LATEST: {}}}})
@requires(Scope.READ)
def metrics(control: Control) -> Response:
    """Prometheus' text format."""
    return Response(control.metrics.render(), media_type=CONTENT_TYPE_LATEST)
