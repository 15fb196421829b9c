from __future__ import annotations

from fastapi import APIRouter

from epochal.contracts.catalog import EpochRecord, EpochState
from epochal.errors import SnapshotExpired
from epochal.service.api.access import requires
from epochal.service.api.answers import answers
from epochal.service.api.context import Node
from epochal.service.api.paging import Paging
from epochal.wire.bodies import EpochNumber
from epochal.wire.snapshots import EpochPage
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/epochs", tags=["epochs"])


@router.get("")
@requires(Role.VIEWER)
def list_epochs(name: str, page: Paging, node: Node, state: EpochState | None = None) -> EpochPage:
    """Of the lineage, newest first. Epochs that are long past are folded: `folded` has ranges of committed ones between
    the items, or below the last."""
    return node.epochs.page(name, page, state)


@router.get("/{epoch}")
@requires(Role.VIEWER)
@answers(SnapshotExpired)
def get_epoch(name: str, epoch: EpochNumber, node: Node) -> EpochRecord:
    """With the reason, when it was aborted. 410 for one that was folded into a range."""
    return node.epochs.get(name, epoch)
