from __future__ import annotations

from pydantic import ConfigDict

from epochal.contracts.catalog import ManifestReference
from epochal.wire.annotations import Annotations
from epochal.wire.bodies import Answer

LONGEST_NAME = 200
"""Characters of what names a snapshot."""


class SnapshotAnswer(Answer):
    """The members of the manifest (format 1: application, branch, epoch, parent, slices, tables, deltas, bases, sinks,
    changes, counts, ..), ``reference``: where it is in the store, and ``annotations``: what people say of it."""

    model_config = ConfigDict(frozen=True, extra="allow")

    format: int
    application: str
    branch: str
    epoch: int
    reference: ManifestReference
    annotations: Annotations
