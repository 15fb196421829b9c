from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from epochal.service.context import Control
from epochal.service.lineage.schemas import LineageAnswer
from epochal.service.pagination import Paging
from epochal.service.security import Scope, requires

router = APIRouter(prefix="/v1/applications/{name}/lineage", tags=["lineage"])


@router.get("")
@requires(Scope.READ)
def get_lineage(name: str, page: Paging, control: Control, format: Literal["json"] = "json") -> LineageAnswer:
    """Snapshots of the whole tree that the application belongs to, newest first, and how each came from another."""
    return control.lineage.read(name, page)
