from __future__ import annotations

from fastapi import APIRouter

from epochal.service.api.access import requires
from epochal.service.api.answers import FILES, SNAPSHOT, answers
from epochal.service.api.context import Node
from epochal.service.api.paging import Paging
from epochal.service.api.reading import Named
from epochal.wire.snapshots import EpochPage, SnapshotAnswer
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1/applications/{name}/snapshots", tags=["snapshots"])


@router.get("")
@requires(Role.VIEWER)
def list_snapshots(name: str, page: Paging, node: Node) -> EpochPage:
    """Prepared and committed epochs of the lineage, newest first; ranges of those that were folded, in `folded`."""
    return node.manifests.page(name, page)


@router.get("/{snapshot}")
@requires(Role.VIEWER)
@answers(*SNAPSHOT, *FILES)
def get_snapshot(name: str, snapshot: Named, node: Node) -> SnapshotAnswer:
    """The manifest: what the epoch read, changed and wrote, and the files that hold it."""
    return node.manifests.get(name, snapshot)
