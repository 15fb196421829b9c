"""Decoding of JSON values to columns in tasks by Arrow's reader, if it is certain to agree with Spark's parser.

Spark's parser defines the meaning of a value (``connectors/json_objects.py``), but costs several times as much as
fetching the record. Arrow's reader accepts fewer texts. :class:`JsonDecoder` does not pass it texts that it might
interpret differently. These texts, and those that Arrow rejects, are left to Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from epochal.connectors.kafka.decoding import VALUE, ValueDecoder, as_texts

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

LEAST_ROWS = 1_000
"""Size of a rejected batch of lines down to which its halves are tried separately."""
SHORT_CHARACTERS, LONG_CHARACTERS = 1_000, 50_000
"""Bounds for the checks of Spark's limits on the length of numbers and names and on nesting. Short texts pass them."""
_DEEP, _LONG_NUMBER = 400, "[0-9]{400}"

_UNLIKE = r"[\x00-\x1f]|\\u|[:,\[ ]-0[,}\] ]"
"""Text that the two parsers may interpret differently: control characters, surrogates, the integer -0 as a double."""


@dataclass(frozen=True)
class JsonDecoder(ValueDecoder):
    """Returns a column ``field_column(n)`` for the n-th of ``fields``, and :data:`VALUE`, the texts left to Spark."""

    fields: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        read = [pa.field(field_column(number), field.type) for number, field in enumerate(self.fields)]
        return pa.schema([*read, pa.field(VALUE, pa.string())])

    def columns(self, values: pa.Array) -> tuple[list[pa.Array], list[str | None] | None]:
        texts, reasons = as_texts(values)
        read, found = self._read(texts)
        if read.all():
            return [*found, pa.nulls(len(texts), pa.string())], reasons
        rows = pa.array(np.cumsum(read) - 1, mask=~read)
        left = pc.if_else(pa.array(read), pa.scalar(None, pa.string()), texts)
        return [*(column.take(rows) for column in found), left], reasons

    def _read(self, texts: pa.Array) -> tuple[npt.NDArray[np.bool_], list[pa.Array]]:
        """Mask of the texts that Arrow has read, and their columns."""
        read = _alike(texts)
        lines = texts.filter(pa.array(read))
        tables, refused = self._tables(lines)
        if refused.any():
            read[np.flatnonzero(read)[refused]] = False
        whole = pa.concat_tables(tables or [self.fields.empty_table()])
        return read, [column.combine_chunks() for column in whole.columns]

    def _tables(self, lines: pa.Array) -> tuple[list[pa.Table], npt.NDArray[np.bool_]]:
        """Tables of the lines that Arrow accepts, in order, and a mask of the lines that it rejects."""
        if len(lines) == 0:
            return [], np.zeros(0, np.bool_)
        table = self._table(lines)
        if table is not None:
            return [table], np.zeros(len(lines), np.bool_)
        if len(lines) <= LEAST_ROWS:
            return [], np.ones(len(lines), np.bool_)
        half = len(lines) // 2
        first, second = self._tables(lines[:half]), self._tables(lines[half:])
        return first[0] + second[0], np.concatenate([first[1], second[1]])

    def _table(self, lines: pa.Array) -> pa.Table | None:
        together = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        data = pc.binary_join(together, "\n")[0].as_buffer()
        options = pyarrow.json.ParseOptions(explicit_schema=self.fields, unexpected_field_behavior="ignore")
        try:
            table = pyarrow.json.read_json(
                pa.BufferReader(data),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=options,
            )
        except pa.ArrowException:
            return None
        # Each line begins and ends as an object does, so equal numbers of objects and lines mean one object per line.
        return table if table.num_rows == len(lines) and table.schema.equals(self.fields) else None


def field_column(number: int) -> str:
    """The name of a field's column in the task's output."""
    return f"_epochal_field_{number}"


def arrow_fields(schema: StructType) -> pa.Schema | None:
    """The columns that :class:`JsonDecoder` returns for these fields; ``None`` for an unsupported type."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema) if _readable(schema) else None


def _readable(type: DataType) -> bool:
    """Check that both parsers agree on values of this type. They differ for times, decimals and floats."""
    from pyspark.sql import types

    match type:
        case types.StructType():
            names = type.fieldNames()
            each = all(field.nullable and _readable(field.dataType) for field in type)
            return each and 0 < len(names) == len(set(names))
        case types.ArrayType():
            return type.containsNull and _readable(type.elementType)
        case _:
            plain = (types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType)
            return type in [kind() for kind in (*plain, types.DoubleType, types.StringType)]


def _alike(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Mask of the texts on which both parsers agree, provided that Arrow's reader accepts them."""
    objects = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}")).fill_null(False)
    found: npt.NDArray[np.bool_] = objects.to_numpy(zero_copy_only=False).copy()
    if _may_differ(texts):
        found &= ~_where(pc.match_substring_regex(texts, _UNLIKE))
    lengths = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False)
    long = np.flatnonzero(lengths > SHORT_CHARACTERS)
    if len(long) > 0:
        those = texts.take(pa.array(long))
        deep = pc.add(pc.count_substring(those, "{"), pc.count_substring(those, "[")).fill_null(0)
        limits = (lengths[long] > LONG_CHARACTERS) | (deep.to_numpy(zero_copy_only=False) > _DEEP)
        found[long] &= ~(limits | _where(pc.match_substring_regex(those, _LONG_NUMBER)))
    return found


def _may_differ(texts: pa.Array) -> bool:
    """Check cheaply, on the bytes, whether :data:`_UNLIKE` can match any of the texts."""
    _, ends, data = texts.buffers()
    if data is None or len(texts) == 0:
        return False
    first, end = np.frombuffer(ends, np.int32)[[texts.offset, texts.offset + len(texts)]]
    content = np.frombuffer(data, np.uint8)[first:end]
    if len(content) == 0:
        return False
    all_bytes = content.tobytes()
    return bool(content.min() < ord(" ")) or b"\\u" in all_bytes or b"-0" in all_bytes


def _where(found: pa.Array) -> npt.NDArray[np.bool_]:
    marked: npt.NDArray[np.bool_] = found.fill_null(False).to_numpy(zero_copy_only=False)
    return marked
