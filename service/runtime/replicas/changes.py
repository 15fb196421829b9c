"""Changes between two snapshots, and encoding of their rows for replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.errors import FileMissing
from epochal.snapshots.delta import DELETE, read_delta
from epochal.snapshots.lineage import history
from epochal.snapshots.manifest import DeltaFile, Manifest
from epochal.snapshots.store import SnapshotStore
from epochal.state.column_bytes import as_list
from epochal.state.key_codec import KeyCodec
from epochal.state.row_codec import RowCodec
from epochal.state.table import StateTable

LONGEST_WALK = 200
"""Maximum number of manifests to walk back. Beyond it, a rebuild from the bases is cheaper."""

CHUNK_ROWS = 1024
"""Rows converted to Python objects per step. Threads that answer look-ups run between the steps."""


def manifests_between(store: SnapshotStore, head: ManifestReference, mark: EpochKey | None) -> list[Manifest] | None:
    """Return the manifests after ``mark`` up to ``head``, oldest first.

    Returns ``None`` if ``mark`` is not an ancestor of ``head`` within ``LONGEST_WALK`` manifests, or a manifest in
    between has been collected.
    """
    found: list[Manifest] = []
    try:
        for manifest in islice(history(store, head), LONGEST_WALK):
            if manifest.key == mark:
                return found[::-1]
            found.append(manifest)
            if manifest.parent is None and mark is None:
                return found[::-1]
    except FileMissing:
        return None
    return None


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows. If ``deleted[i]`` is true, the row of ``keys[i]`` is deleted and its value is meaningless."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    deleted: npt.NDArray[np.bool_] | None

    def puts(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the keys and values to write, in chunks."""
        keys, values = self.keys, self.values
        if self.deleted is not None:
            kept = pa.array(~self.deleted)
            keys, values = keys.filter(kept), values.filter(kept)
        for start in range(0, len(keys), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            yield list(zip(as_list(keys[chunk]), as_list(values[chunk]), strict=True))

    def deletes(self) -> Iterator[list[bytes]]:
        """Yield the keys to delete, in chunks."""
        if self.deleted is None:
            return
        keys = self.keys.filter(pa.array(self.deleted))
        for start in range(0, len(keys), CHUNK_ROWS):
            yield as_list(keys[start : start + CHUNK_ROWS])


class RowEncoder:
    """Encoder for the rows of one state table."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._keys = KeyCodec(table.address_schema)
        self._values = RowCodec(table.value_schema)

    def delta(self, store: SnapshotStore, delta: DeltaFile) -> EncodedRows:
        """Read and encode the changes of one delta. Raises ``FileMissing``, ``FileCorrupt``."""
        return self.rows(read_delta(store, self._table, delta))

    def rows(self, rows: pa.Table) -> EncodedRows:
        """Encode rows of a delta or of a run."""
        if "_op" not in rows.column_names:
            return EncodedRows(*self._encode(rows), None)
        deleted = pc.equal(rows.column("_op"), DELETE).to_numpy()
        return EncodedRows(*self._encode(rows), deleted if deleted.any() else None)

    def _encode(self, rows: Any) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        return self._keys.encode_array(rows), self._values.encode_array(rows)
