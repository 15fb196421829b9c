"""Staging of an append with the library: a manifest of the new files, the list of manifests, the snapshot.

A snapshot carries the manifests of its parent along, so that a commit would read and write a list that grows with every
commit. An append therefore merges small manifests, as Iceberg's library for Java does and within the same properties
(``commit.manifest-merge.enabled``, ``commit.manifest.min-count-to-merge``, ``commit.manifest.target-size-bytes``): when
100 manifests have fewer than 100 files each, one manifest replaces them, and the same again with 100 of these. A file's
entry is thus written once for each of these sizes, and not in every hundredth commit.

A merged manifest has only entries of files that exist, with the snapshot and the sequence numbers with which they were
added, so that it adds no rows for readers of single snapshots. Left as they are: manifests of deletes, of other
partitions than the table has now, encrypted ones, and those that do not state the number of their files.

This module calls private parts of the library, whose version is pinned; ``test_private_parts_of_the_library`` checks
them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertRefSnapshotId
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.properties import property_as_bool, property_as_int

log = logging.getLogger(__name__)

_READ_AHEAD: Final = 16
"""Number of manifests that a merge holds in memory."""


@dataclass(frozen=True)
class StagedAppend:
    """Updates and requirements of a commit, as the catalog takes them. ``merge_failed``: small manifests could not be
    merged, and are carried along."""

    updates: tuple[Any, ...]
    requirements: tuple[Any, ...]
    merge_failed: bool


def staged_append(table: Table, files: Sequence[DataFile], summary: Mapping[str, str], merge: bool) -> StagedAppend:
    """Write the manifest of a snapshot that adds the files to ``main``, and the list of manifests.

    ``summary``: members of the snapshot's summary. ``merge``: merge small manifests if there are many. Raises errors of
    the library."""
    append = _Append(table, summary, merge)
    for file in files:
        append.append_data_file(file)
    updates, requirements = append._commit()
    assert any(isinstance(each, AssertRefSnapshotId) for each in requirements)
    return StagedAppend(updates, requirements, append.merge_failed)


@dataclass(frozen=True)
class MergeLimits:
    """``count``: number of manifests of similar size that one replaces. ``target_bytes``: maximum size of that one."""

    count: int
    target_bytes: int

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> MergeLimits | None:
        """The limits by the table's properties; ``None`` if they disable merging. Raises ``ValueError``."""
        options = dict(properties)
        if not property_as_bool(options, TableProperties.MANIFEST_MERGE_ENABLED, True):
            return None
        count = property_as_int(
            options, TableProperties.MANIFEST_MIN_MERGE_COUNT, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT
        )
        target_bytes = property_as_int(
            options, TableProperties.MANIFEST_TARGET_SIZE_BYTES, TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
        )
        assert count is not None
        assert target_bytes is not None
        return cls(max(2, count), target_bytes)


def small_manifests(manifests: Sequence[ManifestFile], spec: int, limits: MergeLimits) -> list[ManifestFile]:
    """The manifests that one should replace; empty if there are too few. ``spec``: number of the table's partitions."""
    by_size: dict[int, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        files = _live_files(manifest)
        if files and manifest.content == ManifestContent.DATA and manifest.partition_spec_id == spec:
            by_size[_digits(files, limits.count)].append(manifest)
    for _, similar in sorted(by_size.items()):
        smallest = sorted(similar, key=lambda each: each.manifest_length)[: limits.count]
        if len(smallest) == limits.count and sum(each.manifest_length for each in smallest) <= limits.target_bytes:
            return smallest
    return []


def _live_files(manifest: ManifestFile) -> int | None:
    """Number of files that exist in the snapshot; ``None`` if it is not stated, or the manifest is encrypted."""
    added, existing = manifest.added_files_count, manifest.existing_files_count
    if added is None or existing is None or manifest.key_metadata is not None:
        return None
    return added + existing


def _digits(number: int, base: int) -> int:
    digits = 0
    while number:
        number, digits = number // base, digits + 1
    return digits


class _Unchanged(Transaction):
    """A transaction in which nothing is staged.

    The library's copies all metadata at each access, twelve times for an append. This took four fifths of the time of a
    commit to a table with 500 snapshots."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata


class _Append(_FastAppendFiles):
    def __init__(self, table: Table, summary: Mapping[str, str], merge: bool) -> None:
        super().__init__(Operation.APPEND, _Unchanged(table), table.io, snapshot_properties=dict(summary))
        self._merges = merge
        self.merge_failed = False

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        if not self._merges:
            return manifests
        metadata = self._transaction.table_metadata
        try:
            limits = MergeLimits.of(metadata.properties)
            carried = [each for each in manifests if each.added_snapshot_id != self._snapshot_id]
            small = [] if limits is None else small_manifests(carried, metadata.default_spec_id, limits)
            if not small:
                return manifests
            merged = self._merged(small)
        except Exception as error:  # noqa: BLE001  the rows can be committed nonetheless
            log.warning("Small manifests of %s cannot be merged: %s", self._transaction._table.location(), error)
            self.merge_failed = True
            return manifests
        replaced = {each.manifest_path for each in small}
        return [*(each for each in manifests if each.manifest_path not in replaced), merged]

    def _merged(self, manifests: Sequence[ManifestFile]) -> ManifestFile:
        executor = ExecutorFactory.get_or_create()
        with self.new_manifest_writer(self.spec(manifests[0].partition_spec_id)) as writer:
            for first in range(0, len(manifests), _READ_AHEAD):
                for entries in executor.map(self.fetch_manifest_entry, manifests[first : first + _READ_AHEAD]):
                    for entry in entries:
                        writer.existing(entry)
        merged = writer.to_manifest_file()
        expected = sum(_live_files(each) or 0 for each in manifests)
        if merged.existing_files_count != expected:
            raise ValueError(f"they state {expected} files and have {merged.existing_files_count}")
        return merged
