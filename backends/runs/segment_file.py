"""File format of a segment: an Arrow file of one batch, mapped by all workers of a machine, with a checksum.

A trailer holds the CRC-32 and the length of the Arrow file, little-endian. Files are not synced: they are valid for
this boot of the machine only (:mod:`epochal.backends.boot_folders`).
"""

from __future__ import annotations

import json
import os
import zlib
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

import pyarrow as pa

from epochal.backends.runs.segment import Segment, one_chunk
from epochal.snapshots.storage_errors import storage_errors

PART: Final = ".part"
"""Suffix of the names of incomplete files."""
_KEY, _DELETED, _GROUP, _HASH, _AT = "_key", "_deleted", "_group", "_hash", "_at"
_NAMES: Final = b"names"
_TRAILER: Final = Struct("<4sIQ")
_MAGIC: Final = b"runs"


class SegmentDamaged(Exception):
    """A file is not a segment, or its content has changed since it was written."""


def written(segment: Segment, path: Path) -> Segment:
    """Write ``segment`` to a new file and map it. Raises ``StorageFull``, ``FileMissing``, ``SnapshotError``; then no
    file remains."""
    groups, hashes = pa.array(segment.groups), pa.array(segment.hashes)
    columns: dict[str, pa.Array] = {_GROUP: groups, _KEY: segment.keys, _HASH: hashes}
    if segment.deleted is not None:
        columns[_DELETED] = pa.array(segment.deleted)
    if segment.at is not None:
        columns[_AT] = pa.array(segment.at)
    values = {str(number): one_chunk(column) for number, column in enumerate(segment.values.columns)}
    about = {_NAMES: json.dumps(segment.values.column_names)}
    batch = pa.record_batch(list((columns | values).values()), names=list(columns | values))
    batch = batch.replace_schema_metadata(about)
    with storage_errors(str(path)):
        try:
            with open(path, "xb", opener=_for_its_owner) as file:
                _write(batch, file)
            return mapped(path, check=False)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _write(batch: pa.RecordBatch, file: BinaryIO) -> None:
    """Write with system calls and not through a map: a full disk then raises an error and does not kill the process."""
    checked = _Checked(file)
    with pa.PythonFile(checked, "w") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    file.write(_TRAILER.pack(_MAGIC, checked.crc32, checked.length))


class _Checked:
    """Writer that computes the length and the checksum of its data."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc32 = self.length = 0

    def write(self, data: bytes) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.length += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Do nothing: the caller closes the file."""


def mapped(path: Path, check: bool = True) -> Segment:
    """Map a segment. Its pages stay mapped until the last reference ends, even if the file is removed.

    ``check``: read the whole file to verify the checksum. Raises ``FileNotFoundError``, :class:`SegmentDamaged`.
    """
    with pa.memory_map(str(path)) as source:
        content = source.read_buffer()
    if content.size < _TRAILER.size:
        raise SegmentDamaged(f"{path} is cut short")
    length = content.size - _TRAILER.size
    magic, crc32, written_length = _TRAILER.unpack(content.slice(length))
    content = content.slice(0, length)
    if (magic, written_length) != (_MAGIC, length) or (check and zlib.crc32(content) != crc32):
        raise SegmentDamaged(f"{path} does not match its checksum")
    file = pa.ipc.open_file(content)
    return _of(file.get_batch(0), json.loads(file.schema.metadata[_NAMES]), path.name)


def _of(rows: pa.RecordBatch, names: list[str], file: str) -> Segment:
    own = {name: rows.column(name) for name in rows.schema.names if not name.isdigit()}
    deleted = own.get(_DELETED)
    return Segment(
        own[_GROUP].to_numpy(),
        own[_KEY],
        None if deleted is None else deleted.to_numpy(zero_copy_only=False),
        pa.table([rows.column(str(number)) for number in range(len(names))], names=names),
        own[_HASH].to_numpy(),
        own[_AT].to_numpy() if _AT in own else None,
        file,
    )
