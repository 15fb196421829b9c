"""What the catalog knows of the making of snapshots: when, by which version of which application, with what changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import cast

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from epochal.contracts.catalog import Change, EpochState
from epochal.contracts.identity import EpochKey
from epochal.service.catalog.models import Application, Artifact, Epoch, Execution, Version
from epochal.service.domain.ports import Making

_AT_ONCE = 500
"""Keys in one query: databases bound the number of its parameters."""


def read_makings(session: Session, keys: Collection[EpochKey]) -> Mapping[EpochKey, Making]:
    """By key; snapshots that the catalog does not know are left out."""
    found: dict[EpochKey, Making] = {}
    for some in _batches(keys):
        query = (
            select(Epoch, Application.name, Version, Artifact.filename)
            .join(Execution, Execution.id == Epoch.execution)
            .join(Application, Application.id == Execution.application)
            .join(
                Version,
                (Version.application == Execution.application)
                & (Version.number == func.coalesce(Epoch.version, Execution.version)),
            )
            .join(Artifact, Artifact.sha256 == Version.artifact)
            .where(tuple_(Epoch.branch, Epoch.epoch).in_([(key.branch, key.epoch) for key in some]))
        )
        for row, application, version, filename in session.execute(query):
            found[EpochKey(row.branch, row.epoch)] = Making(
                application=application,
                state=cast(EpochState, row.state),
                committed_at=row.committed_at,
                version=version.number,
                artifact=version.artifact,
                filename=filename,
                parameters=version.parameters,
                changes=tuple(Change.model_validate(change) for change in row.changes or ()),
            )
    return found


def _batches(keys: Collection[EpochKey]) -> Iterator[list[EpochKey]]:
    remaining = iter(keys)
    while some := list(islice(remaining, _AT_ONCE)):
        yield some
