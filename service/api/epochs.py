from __future__ import annotations

from fastapi import APIRouter

from epochal.contracts.catalog import EpochRecord, EpochState
from epochal.service.api.access import requires
from epochal.service.api.context import Control
from epochal.service.api.paging import Paging
from epochal.wire.bodies import EpochNumber, Page
from epochal.wire.scopes import Scope

router = APIRouter(prefix="/v1/applications/{name}/epochs", tags=["epochs"])


@router.get("")
@requires(Scope.READ)
def list_epochs(name: str, page: Paging, control: Control, state: EpochState | None = None) -> Page[EpochRecord]:
    """Of the lineage, newest first."""
    return control.epochs.page(name, page, state)


@router.get("/{epoch}")
@requires(Scope.READ)
def get_epoch(name: str, epoch: EpochNumber, control: Control) -> EpochRecord:
    """With the reason, when it was aborted."""
    return control.epochs.get(name, epoch)
