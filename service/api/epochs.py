from __future__ import annotations

from fastapi import APIRouter

from epochal.contracts.catalog import EpochRecord, EpochState
from epochal.service.api.access import requires
from epochal.service.api.context import Node
from epochal.service.api.paging import Paging
from epochal.wire.bodies import EpochNumber, Page
from epochal.wire.scopes import Scope

router = APIRouter(prefix="/v1/applications/{name}/epochs", tags=["epochs"])


@router.get("")
@requires(Scope.READ)
def list_epochs(name: str, page: Paging, node: Node, state: EpochState | None = None) -> Page[EpochRecord]:
    """Of the lineage, newest first."""
    return node.epochs.page(name, page, state)


@router.get("/{epoch}")
@requires(Scope.READ)
def get_epoch(name: str, epoch: EpochNumber, node: Node) -> EpochRecord:
    """With the reason, when it was aborted."""
    return node.epochs.get(name, epoch)
