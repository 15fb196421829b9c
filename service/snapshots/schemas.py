from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import ConfigDict

from epochal.contracts.catalog import ManifestReference
from epochal.service.annotations.schemas import Annotations
from epochal.service.schema import Answer
from epochal.service.snapshots.names import LONGEST_NAME

Named = Annotated[
    str, Path(max_length=LONGEST_NAME, description="An epoch, a savepoint, a tag, or `head`.", examples=["12"])
]


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
