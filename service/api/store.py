"""The store: collections, verifications, backups."""

from __future__ import annotations

from fastapi import APIRouter, status

from epochal.errors import Conflict, NotFound, OptionError
from epochal.service.api.access import reads_only, requires
from epochal.service.api.context import Control
from epochal.service.api.gate import Caller
from epochal.service.api.openapi import STORE, answers
from epochal.wire.operations import OperationAnswer
from epochal.wire.store import Backup, Collect, CollectionPlanAnswer, Prune, PruningAnswer, Verify
from epochal.wire.tokens import Role

router = APIRouter(prefix="/v1", tags=["store"])


@router.post("/collections/plan")
@requires(Role.ADMIN)
@reads_only
@answers(*STORE)
def plan_collection(request: Collect, control: Control) -> CollectionPlanAnswer:
    """Show what a collection would delete now, and why. Changes nothing."""
    return control.collections.plan(request)


@router.post("/collections", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
def collect(request: Collect, control: Control, caller: Caller) -> OperationAnswer:
    """Delete files that no retained snapshot needs. The control plane also does this periodically."""
    return control.collections.collect(request, caller.name)


@router.post("/verifications", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
@answers(NotFound)
def verify(request: Verify, control: Control, caller: Caller) -> OperationAnswer:
    """Check every file that retained snapshots need; on request, restore files that can be rewritten byte for byte."""
    return control.collections.verify(request, caller.name)


@router.post("/backups", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
@answers(OptionError)
def back_up(request: Backup, control: Control, caller: Caller) -> OperationAnswer:
    """Copy the catalog and all files and artifacts that it references. No collection runs meanwhile; applications
    continue."""
    return control.backups.create(request, caller.name)


@router.post("/backups/prune/plan")
@requires(Role.ADMIN)
@reads_only
@answers(Conflict, NotFound, OptionError, *STORE)
def plan_pruning(request: Prune, control: Control) -> PruningAnswer:
    """Show which backups would be deleted now, and the space that this frees. Changes nothing."""
    return control.backups.plan_pruning(request)


@router.post("/backups/prune", status_code=status.HTTP_202_ACCEPTED)
@requires(Role.ADMIN)
@answers(OptionError)
def prune(request: Prune, control: Control, caller: Caller) -> OperationAnswer:
    """Delete old backups, and files that no remaining backup references. Fails unless a remaining backup is
    complete."""
    return control.backups.prune(request, caller.name)
