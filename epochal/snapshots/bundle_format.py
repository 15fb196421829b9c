"""Format of a bundle: a tar archive (ustar), compressed with zstd; names of its members, and its header.

    bundle.json            format, origin, snapshot, versions, branches            first
    epochs.jsonl           the catalog's rows of the epochs, newest first
    artifacts/{sha256}     code
    manifests/{sha256}     newest first: each is the parent of the previous one
    packs/{sha256}         packs: small files of epochs
    files/{sha256}         deltas, bases, records in flight in loops, standing queries
    end.json               the header's checksum and the number of members          last

Members are named by their checksums. The manifest that names a file has its path in the store. The checksum of a
manifest is in its child, that of the first one and those of the packs in the header, so that the header covers all
members. The same snapshot always has the same members in the same order.

A pack is copied whole, as its store has it: also files that the snapshot does not need, and the manifest after them if
there is one. The file at a path is thus the same in every store, whatever part of a lineage a bundle contains. The
bundle has the pack of each file in it that it needs, and of each of its manifests in a pack; such a manifest is a
member, too.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from epochal.contracts.catalog import Change, EpochCounts, ManifestReference, ShownDue, ShownWatermarks
from epochal.contracts.conditions import Trigger
from epochal.contracts.configuration import Parameters
from epochal.contracts.identity import EpochKey, StorePath
from epochal.errors import InvalidInput
from epochal.snapshots.layout import FORMAT

KIND = "epochal-bundle"
HEADER, EPOCHS, END = "bundle.json", "epochs.jsonl", "end.json"
MANIFESTS, ARTIFACTS, PACKS, FILES = "manifests/", "artifacts/", "packs/", "files/"
MEMBER = re.compile(r"bundle\.json|epochs\.jsonl|end\.json|(manifests|artifacts|packs|files)/[0-9a-f]{64}")
BLOCK = 512


class BundleError(InvalidInput):
    """The bundle cannot be used."""

    slug = "invalid-bundle"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BundleOrigin(_Model):
    """Origin of a bundle. ``control_plane`` is the constant id of a catalog."""

    control_plane: str
    application: str
    branch: str
    epoch: int
    exported_at: datetime
    by: str
    message: str | None = None


class BundleVersion(_Model):
    """A version of an application (by its id) that ran some of the epochs."""

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
    """A branch of some of the epochs, and the id of its application."""

    id: str
    application: str
    kind: str
    parent: EpochKey | None
    message: str | None
    created_at: datetime
    created_by: str


class BundleEpoch(_Model):
    """The catalog's row of an epoch."""

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
    """Header of a bundle. ``since``: snapshot that the importer must have; files that it needs are left out.
    ``version``: number of the version that created the snapshot, one of ``versions``. ``applications``: names by id;
    they may repeat. ``packs``: checksums of the packs, by path in the store."""

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
    packs: dict[StorePath, str] = {}
    epochs_sha256: str
    members: int
    bytes: int
    """Total size of manifests, artifacts, packs and files."""

    def name_of(self, application: str) -> str:
        """Name of an application, by its id. Raises ``BundleError``."""
        if application not in self.applications:
            raise BundleError(f"The bundle does not have the name of application {application}: it was altered.")
        return self.applications[application]

    @property
    def made_with(self) -> BundleVersion:
        """The version that created the snapshot. Raises ``BundleError``."""
        makers = {branch.application for branch in self.branches if branch.id == self.snapshot.branch}
        for version in self.versions:
            if version.application in makers and version.number == self.version:
                return version
        raise BundleError("The bundle lacks the version that created its snapshot: it was altered.")


class BundleEnd(_Model):
    header_sha256: str
    members: int
