"""What lies between two snapshots, and its rows as the bytes that replicas hold."""

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
"""Further back than this, building anew from the bases is the better way."""

CHUNK_ROWS = 1024
"""Rows that become Python objects at once: other threads, which answer look-ups, get their turn in between."""


def manifests_between(store: SnapshotStore, head: ManifestReference, mark: EpochKey | None) -> list[Manifest] | None:
    """The manifests after ``mark`` up to ``head``, oldest first; ``None`` when ``mark`` is not on the way back, or
    something between was collected."""
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
    """Rows as bytes. ``deleted[i]``: the row of ``keys[i]`` is gone, and its value means nothing."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    deleted: npt.NDArray[np.bool_] | None

    def puts(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Keys and values to be written, in chunks."""
        keys, values = self.keys, self.values
        if self.deleted is not None:
            kept = pa.array(~self.deleted)
            keys, values = keys.filter(kept), values.filter(kept)
        for start in range(0, len(keys), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            yield list(zip(as_list(keys[chunk]), as_list(values[chunk]), strict=True))

    def deletes(self) -> Iterator[list[bytes]]:
        """Keys to be removed, in chunks."""
        if self.deleted is None:
            return
        keys = self.keys.filter(pa.array(self.deleted))
        for start in range(0, len(keys), CHUNK_ROWS):
            yield as_list(keys[start : start + CHUNK_ROWS])


class RowEncoder:
    """Rows of one state table as bytes."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._keys = KeyCodec(table.address_schema)
        self._values = RowCodec(table.value_schema)

    def delta(self, store: SnapshotStore, delta: DeltaFile) -> EncodedRows:
        """One delta's changes. Raises ``FileMissing``, ``FileCorrupt``."""
        rows = read_delta(store, self._table, delta)
        deleted = pc.equal(rows.column("_op"), DELETE).to_numpy()
        return EncodedRows(*self._encode(rows), deleted if deleted.any() else None)

    def rows(self, rows: Any) -> EncodedRows:
        """Rows of a base."""
        return EncodedRows(*self._encode(rows), None)

    def _encode(self, rows: Any) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        return self._keys.encode_array(rows), self._values.encode_array(rows)
