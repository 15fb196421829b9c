"""Errors of snapshots and their files."""

from __future__ import annotations

from epochal.errors.root import EpochalError


class SnapshotError(EpochalError):
    """A snapshot cannot be used."""

    slug = "snapshot-error"


class FileCorrupt(SnapshotError):
    """A file of a snapshot does not have the checksum in its manifest."""

    slug = "file-corrupt"


class ForeignFile(FileCorrupt):
    """A manifest names a file that does not belong to its lineage."""

    slug = "foreign-file"


class FileMissing(SnapshotError):
    """A file that a manifest names is missing."""

    slug = "file-missing"


class NewerFormat(SnapshotError):
    """A snapshot was written by a later version of Epochal, in a format that this version cannot read."""

    slug = "newer-format"


class StoreUnavailable(EpochalError):
    """The snapshot store does not answer. Work waits for it and continues when it answers."""

    slug = "store-unavailable"


class StoreRefuses(StoreUnavailable):
    """The snapshot store refuses requests: its credentials, permissions or settings must be corrected."""

    slug = "store-refuses"
