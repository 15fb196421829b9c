"""The form of a bundle: a tar (ustar) of plain files, compressed with zstd; what its members are called, its header.

    bundle.json            format, origin, which snapshot, versions, branches      first
    epochs.jsonl           what the catalog said of each epoch, newest first
    artifacts/{sha256}     code
    manifests/{sha256}     newest first: each is the parent of the one before
    files/{sha256}         deltas, bases, records in flight in loops, standing queries
    end.json               the header's checksum and the number of members          last

Members are called after their own checksums. Where a file lies in a store is said by the manifest that names it, and
what a manifest's checksum is by its child, the first one's by the header: so everything hangs on the header. The same
snapshot always has the same members in the same order.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.catalog import Change, EpochCounts, ManifestReference, ShownDue, ShownWatermarks
from epochal.contracts.conditions import Trigger
from epochal.contracts.configuration import Parameters
from epochal.contracts.identity import EpochKey
from epochal.errors import InvalidInput
from epochal.snapshots.layout import FORMAT

KIND = "epochal-bundle"
HEADER, EPOCHS, END = "bundle.json", "epochs.jsonl", "end.json"
MANIFESTS, ARTIFACTS, FILES = "manifests/", "artifacts/", "files/"
MEMBER = re.compile(r"bundle\.json|epochs\.jsonl|end\.json|(manifests|artifacts|files)/[0-9a-f]{64}")
BLOCK = 512


class BundleError(InvalidInput):
    """The bundle cannot be used."""

    slug = "invalid-bundle"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BundleOrigin(_Model):
    """Where a bundle comes from. ``control_plane`` is an id that stays the same for one catalog."""

    control_plane: str
    application: str
    branch: str
    epoch: int
    exported_at: datetime
    by: str
    message: str | None = None


class BundleVersion(_Model):
    """A version of an application (by its id) that made some of the epochs."""

    application: str
    number: int
    artifact: str
    filename: str
    parameters: Parameters
    configuration: dict[str, Any]
    graph: dict[str, Any] | None = None
    created_at: datetime
    created_by: str


class BundleBranch(_Model):
    """A branch on which some of the epochs lie, and the id of its application."""

    id: str
    application: str
    kind: str
    parent: EpochKey | None
    message: str | None
    created_at: datetime
    created_by: str


class BundleEpoch(_Model):
    """What the catalog says of an epoch."""

    branch: str
    epoch: int
    attempt: int
    parent: EpochKey | None
    version: int | None
    changes: tuple[Change, ...] = ()
    opened_for: tuple[Trigger, ...] = ()
    watermarks: dict[str, ShownWatermarks] = {}
    next_due: ShownDue | None = None
    counts: EpochCounts = EpochCounts()
    started_at: datetime
    prepared_at: datetime | None
    committed_at: datetime | None

    @property
    def key(self) -> EpochKey:
        return EpochKey(self.branch, self.epoch)


class BundleHeader(_Model):
    """``since``: the snapshot that the importer must have; everything that it needs is left out. ``version``: the one
    that made the snapshot; it stands in ``versions``. ``applications``: names by id, of which two may be the same."""

    kind: Literal["epochal-bundle"] = "epochal-bundle"
    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    made_by: str
    origin: BundleOrigin
    snapshot: ManifestReference
    since: ManifestReference | None
    version: int
    applications: dict[str, str]
    versions: tuple[BundleVersion, ...]
    branches: tuple[BundleBranch, ...]
    epochs_sha256: str
    members: int
    bytes: int
    """Of all manifests, artifacts and files."""

    def name_of(self, application: str) -> str:
        """By its id. Raises ``BundleError``."""
        if application not in self.applications:
            raise BundleError(f"The bundle does not say what application {application} is called: it was altered.")
        return self.applications[application]

    @property
    def made_with(self) -> BundleVersion:
        """The version that made the snapshot. Raises ``BundleError``."""
        makers = {branch.application for branch in self.branches if branch.id == self.snapshot.branch}
        for version in self.versions:
            if version.application in makers and version.number == self.version:
                return version
        raise BundleError("The bundle does not say which version made its snapshot: it was altered.")


class BundleEnd(_Model):
    header_sha256: str
    members: int
