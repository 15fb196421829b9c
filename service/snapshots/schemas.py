from __future__ import annotations

from pydantic import ConfigDict

from epochal.contracts.catalog import ManifestReference
from epochal.service.schema import Answer


class SnapshotAnswer(Answer):
    """The members of the manifest (format 1: application, branch, epoch, parent, slices, tables, deltas, bases, sinks,
    changes, counts, ..), and ``reference``: where it is in the store."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format: int
    application: str
    branch: str
    epoch: int
    reference: ManifestReference
