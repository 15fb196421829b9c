"""What a driver calls, with the token of its own execution and attempt: the catalog contract, one call each.

Every call may be repeated; ``epochal.service.driver.wire`` says what is sent and answered.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, status

from epochal.contracts.catalog import Catalog, DriverStatus, EpochRecord, RecoveryPoint
from epochal.errors import NotFound
from epochal.service.context import Control
from epochal.service.driver.wire import (
    AbortEpoch,
    CompleteDirective,
    Directives,
    FinishAttempt,
    OpenEpoch,
    PrepareEpoch,
)
from epochal.service.schema import EpochNumber
from epochal.service.security import for_drivers

router = APIRouter(prefix="/internal/v1/executions/{execution}/attempts/{attempt}", tags=["internal"])

AttemptNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]


def _catalog(execution: str, attempt: AttemptNumber, control: Control) -> Catalog:
    return control.drivers.catalog(execution, attempt)


Guarded = Annotated[Catalog, Depends(_catalog)]


@router.post("/begin")
@for_drivers
def begin_attempt(catalog: Guarded) -> RecoveryPoint:
    """R1, R2."""
    return catalog.begin_attempt()


@router.post("/epochs", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
def open_epoch(body: OpenEpoch, catalog: Guarded) -> None:
    """E1."""
    catalog.open_epoch(body.epoch, body.parent)


@router.get("/epochs/{epoch}")
@for_drivers
def read_epoch(epoch: EpochNumber, catalog: Guarded) -> EpochRecord:
    record = catalog.epoch(epoch)
    if record is None:
        raise NotFound(f"There is no epoch {epoch}.")
    return record


@router.post("/epochs/{epoch}/prepare", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
def prepare_epoch(epoch: EpochNumber, body: PrepareEpoch, catalog: Guarded) -> None:
    """E4, the commit decision."""
    catalog.prepare_epoch(epoch, body.parent, body.manifest, body.counts, body.terms)


@router.post("/epochs/{epoch}/commit", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
def commit_epoch(epoch: EpochNumber, catalog: Guarded) -> None:
    """E6."""
    catalog.commit_epoch(epoch)


@router.post("/epochs/{epoch}/abort", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
def abort_epoch(epoch: EpochNumber, body: AbortEpoch, catalog: Guarded) -> None:
    catalog.abort_epoch(epoch, body.failure)


@router.post("/heartbeat")
@for_drivers
def heartbeat(body: DriverStatus, catalog: Guarded) -> Directives:
    return Directives(directives=catalog.heartbeat(body))


@router.post("/directives/{directive}", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
def complete_directive(directive: str, body: CompleteDirective, catalog: Guarded) -> None:
    catalog.complete(directive, body.head, body.failure)


@router.post("/finish", status_code=status.HTTP_204_NO_CONTENT)
@for_drivers
def finish_attempt(execution: str, body: FinishAttempt, catalog: Guarded, control: Control) -> None:
    catalog.finish(body.failure)
    control.drivers.finished(execution)
