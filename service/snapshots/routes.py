from __future__ import annotations

from fastapi import APIRouter

from epochal.contracts.catalog import EpochRecord
from epochal.service.context import Control
from epochal.service.pagination import Paging
from epochal.service.schema import Page
from epochal.service.security import Scope, requires
from epochal.service.snapshots.schemas import Named, SnapshotAnswer

router = APIRouter(prefix="/v1/applications/{name}/snapshots", tags=["snapshots"])


@router.get("")
@requires(Scope.READ)
def list_snapshots(name: str, page: Paging, control: Control) -> Page[EpochRecord]:
    """Prepared and committed epochs of the lineage, newest first."""
    return control.manifests.page(name, page)


@router.get("/{snapshot}")
@requires(Scope.READ)
def get_snapshot(name: str, snapshot: Named, control: Control) -> SnapshotAnswer:
    """The manifest: what the epoch read, changed and wrote, and the files that hold it."""
    return control.manifests.get(name, snapshot)
