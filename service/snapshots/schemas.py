from __future__ import annotations

from epochal.contracts.catalog import ManifestReference
from epochal.snapshots.manifest import Manifest


class SnapshotAnswer(Manifest):
    """The manifest, and where it is."""

    reference: ManifestReference
