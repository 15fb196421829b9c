"""Parquet files read by byte ranges: the driver reads footers, the executors read columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from epochal.connectors.fetched_files import FetchedFile, FetchedFiles
from epochal.connectors.file_listing import FileRecord
from epochal.connectors.file_reading import check_distinct
from epochal.errors import SchemaError, SourceError
from epochal.state.types import shown_type, with_spark_types

BATCH_ROWS = 50_000


def parquet_schema(files: FetchedFiles, record: FileRecord) -> pa.Schema:
    """The columns in the file's footer. Raises ``SourceError`` for an invalid Parquet file."""
    with _opened(files, record) as file:
        check_distinct(record.path, file.schema_arrow.names)
        return _schema_of(file)


def parquet_rows(files: FetchedFiles, record: FileRecord) -> int:
    """The number of rows in the file's footer. Raises ``SourceError`` for an invalid Parquet file."""
    with _opened(files, record) as file:
        return int(file.metadata.num_rows)


def parquet_batches(files: FetchedFiles, record: FileRecord, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the file's rows with the columns of ``schema``, matched by name. Columns missing in the file are null.

    Raises ``SchemaError``, which names the file and the column, for a column of another type, and ``SourceError`` for a
    damaged file.
    """
    with _opened(files, record) as file:
        names = [field.name for field in _columns_of(record, _schema_of(file), schema)]
        batches = file.iter_batches(BATCH_ROWS, columns=names)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, pa.ArrowException):
                    raise _damaged(record, error) from error
                raise
            if batch is None:
                return
            columns = {name.casefold(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
            yield pa.RecordBatch.from_arrays(
                [_conformed(record, field, columns.get(field.name.casefold()), batch.num_rows) for field in schema],
                schema=schema,
            )


def _schema_of(file: pq.ParquetFile) -> pa.Schema:
    """The columns as Spark reads them: timestamps of type INT96 are instants, in UTC."""
    schema = file.schema_arrow
    for place in range(len(file.schema)):
        column = file.schema.column(place)
        if column.physical_type == "INT96" and column.path in schema.names:
            index = schema.get_field_index(column.path)
            schema = schema.set(index, pa.field(column.path, pa.timestamp("us", "UTC")))
    return schema


def _columns_of(record: FileRecord, there: pa.Schema, schema: pa.Schema) -> list[pa.Field]:
    """The declared columns of the file, matched by name without regard to case.

    Raises ``SchemaError`` for a declared name that matches two columns, and for a type that Spark does not read as the
    declared type. The decision depends on types only, never on values.
    """
    found = []
    for field in schema:
        same = [each for each in there if each.name.casefold() == field.name.casefold()]
        if len(same) > 1:
            names = " and ".join(repr(each.name) for each in same)
            raise SchemaError(
                f"{record.path} has the columns {names}, which differ only by case: column {field.name!r} is "
                "ambiguous. Rewrite the file with other names."
            )
        for each in same:
            if not _is_readable(each.type, field.type):
                raise SchemaError(
                    f"Column {field.name!r} of {record.path} is {each.type}, which cannot be read as {field.type}. "
                    "Declare the type that the files have, and cast in the pipeline."
                )
        found += same
    return found


def _is_readable(there: pa.DataType, declared: pa.DataType) -> bool:
    """Check whether every value of the file's type is a value of the declared type."""
    types = pa.types
    if types.is_dictionary(there):
        return _is_readable(there.value_type, declared)
    if there.equals(declared):
        return True
    if types.is_integer(there):
        bits = there.bit_width + types.is_unsigned_integer(there)
        if types.is_decimal(declared):
            return bool(declared.precision - declared.scale >= len(str(2 ** (bits - 1))))
        floats = types.is_float64(declared) and bits <= 32
        return floats or bool(types.is_signed_integer(declared) and bits <= declared.bit_width)
    if types.is_decimal(there) and types.is_decimal(declared):
        digits = declared.precision - declared.scale >= there.precision - there.scale
        return bool(digits and declared.scale >= there.scale)
    if types.is_timestamp(there) and types.is_timestamp(declared):
        return (there.tz is None) == (declared.tz is None)
    if types.is_list(declared) and (types.is_list(there) or types.is_large_list(there)):
        return _is_readable(there.value_type, declared.value_type)
    if types.is_map(there) and types.is_map(declared):
        return _is_readable(there.key_type, declared.key_type) and _is_readable(there.item_type, declared.item_type)
    if types.is_struct(there) and types.is_struct(declared):
        inside = {field.name: field.type for field in there}
        return all(field.name not in inside or _is_readable(inside[field.name], field.type) for field in declared)
    return any(is_kind(there) and is_same(declared) for is_kind, is_same in _SAME)


_SAME = (
    (pa.types.is_null, lambda declared: True),
    (pa.types.is_float32, pa.types.is_float64),
    (pa.types.is_large_string, pa.types.is_string),
    (pa.types.is_large_binary, pa.types.is_binary),
    (pa.types.is_fixed_size_binary, pa.types.is_binary),
    (pa.types.is_string, pa.types.is_binary),
    (pa.types.is_binary, pa.types.is_string),
)
"""Pairs of types where the second holds every value of the first. Text can be declared binary, as in Spark."""


def _conformed(record: FileRecord, field: pa.Field, column: pa.Array | None, rows: int) -> pa.Array:
    if column is None:
        return pa.nulls(rows, field.type)
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SourceError(
            f"Column {field.name!r} of {record.path} is {shown_type(column.type)}, which cannot be read as "
            f"{shown_type(field.type)}: {with_spark_types(error)}. Declare the type that the files have, and cast in "
            "the pipeline."
        ) from error


def _opened(files: FetchedFiles, record: FileRecord) -> pq.ParquetFile:
    file = pa.PythonFile(FetchedFile(files, record), mode="r")
    try:
        return pq.ParquetFile(file, pre_buffer=True, coerce_int96_timestamp_unit="us")
    except pa.ArrowException as error:
        raise _damaged(record, error) from error


def _damaged(record: FileRecord, error: Exception) -> SourceError:
    return SourceError(
        f"{record.path} is not a complete Parquet file: {error}. Move it away, or rewrite it under a new name."
    )
