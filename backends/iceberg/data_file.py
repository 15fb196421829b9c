"""Entries of data files: written by tasks with the library, returned in handles, committed by the driver.

The library has no public way to write files without committing them. This module and
:mod:`epochal.backends.iceberg.append` use its private parts; the version of the library is pinned, and
``test_private_parts_of_the_library`` checks them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from epochal.backends.iceberg.projection import keep_nulls
from epochal.contracts.handle import Handle

keep_nulls()

_COUNTS: Final = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS: Final = ("lower_bounds", "upper_bounds")

Encoded = Mapping[str, Any]
"""An entry as JSON."""


def written(metadata: TableMetadata, io: FileIO, rows: pa.Table, name: str, numbers: Iterator[int]) -> list[DataFile]:
    """Write rows to files of the table, one or more for each partition. ``name``: part of the names of the files, which
    must be unique; ``numbers``: numbers of the files. Raises ``OSError`` and ``ValueError``."""
    counter: Any = numbers
    unique: Any = name  # the library only formats it
    return list(_dataframe_to_data_files(metadata, rows, io, write_uuid=unique, counter=counter))


def file_numbers() -> Iterator[int]:
    """Numbers of one task's files."""
    return count(0)


def encoded(file: DataFile, metadata: TableMetadata) -> dict[str, Any]:
    """The entry as JSON, of a file that was written with ``metadata``. Values of the partition and bounds are the bytes
    that Iceberg defines, in base64."""
    return {
        **placed(file, metadata.spec(), metadata.schema()),
        "offsets": list(file.split_offsets or ()),
        **{name: {str(key): value for key, value in (getattr(file, name) or {}).items()} for name in _COUNTS},
        **{name: {str(key): _text(value) for key, value in (getattr(file, name) or {}).items()} for name in _BOUNDS},
    }


def placed(file: DataFile, spec: PartitionSpec, schema: Schema) -> dict[str, Any]:
    """The part of an entry with which the file is read: its path, size, rows and values of the partition."""
    values = [file.partition[at] for at in range(len(spec.fields))]
    return {
        "path": file.file_path,
        "size": file.file_size_in_bytes,
        "rows": file.record_count,
        "spec": spec.spec_id,
        "partition": [
            None if value is None else _text(to_bytes(type, value))
            for value, type in zip(values, _types(spec, schema), strict=True)
        ],
    }


def decoded(entry: Encoded, metadata: TableMetadata, schema: Schema) -> DataFile:
    """The inverse of :func:`encoded` and :func:`placed`. ``schema``: the one with which the file was written."""
    spec = metadata.specs()[entry["spec"]]
    values = [
        None if value is None else from_bytes(type, base64.b64decode(value))
        for value, type in zip(entry["partition"], _types(spec, schema), strict=True)
    ]
    arguments: dict[str, Any] = {
        **{name: {int(key): value for key, value in entry.get(name, {}).items()} for name in _COUNTS},
        **{name: {int(key): base64.b64decode(value) for key, value in entry.get(name, {}).items()} for name in _BOUNDS},
    }
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=entry["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=entry["rows"],
        file_size_in_bytes=entry["size"],
        key_metadata=None,
        split_offsets=entry.get("offsets") or None,
        equality_ids=None,
        sort_order_id=None,
        **arguments,
    )
    file.spec_id = entry["spec"]
    return file


def entries_of(handles: Iterable[Handle]) -> list[Encoded]:
    """Entries of the files that the handles name."""
    return [entry for handle in handles for entry in handle.payload.get("files", [])]


def schemas_of(handles: Iterable[Handle]) -> set[int]:
    """Numbers of the schemas with which the handles' files were written."""
    return {handle.payload["schema"] for handle in handles if handle.payload.get("files")}


def _types(spec: PartitionSpec, schema: Schema) -> list[PrimitiveType]:
    types = [field.field_type for field in spec.partition_type(schema).fields]
    assert all(isinstance(type, PrimitiveType) for type in types)
    return [type for type in types if isinstance(type, PrimitiveType)]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
