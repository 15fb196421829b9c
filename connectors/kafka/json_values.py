"""JSON values to columns in the tasks, by Arrow's reader, where it is certain to find what Spark's parser finds.

Spark's parser says what a value means (``connectors/json_objects.py``), and costs several times what it costs to
fetch the record. Arrow's reader takes fewer texts. What it takes in a way of its own, :class:`JsonDecoder` keeps from
it; what it refuses, and all that is kept from it, goes to Spark as text.
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
"""Lines that are refused together are tried again by halves, down to so many."""
SHORT_CHARACTERS, LONG_CHARACTERS = 1_000, 50_000
"""Spark's parser limits how long numbers and names may be, and how deep values: a short text is within its limits."""
_DEEP, _LONG_NUMBER = 400, "[0-9]{400}"

_UNLIKE = r"[\x00-\x1f]|\\u|[:,\[ ]-0[,}\] ]"
"""What the two may take differently: control characters, surrogates, and the integer -0 as a double."""


@dataclass(frozen=True)
class JsonDecoder(ValueDecoder):
    """Gives a column ``field_column(n)`` for the n-th of ``fields``, and :data:`VALUE`, the texts left to Spark."""

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
        """Which of the texts were read here, and the columns of those."""
        read = _alike(texts)
        lines = texts.filter(pa.array(read))
        tables, refused = self._tables(lines)
        if refused.any():
            read[np.flatnonzero(read)[refused]] = False
        whole = pa.concat_tables(tables or [self.fields.empty_table()])
        return read, [column.combine_chunks() for column in whole.columns]

    def _tables(self, lines: pa.Array) -> tuple[list[pa.Table], npt.NDArray[np.bool_]]:
        """Tables of the lines that Arrow takes, in order; and which it does not."""
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
        # As each line begins and ends as an object does, so many objects are one a line.
        return table if table.num_rows == len(lines) and table.schema.equals(self.fields) else None


def field_column(number: int) -> str:
    """What the task calls the column of a field."""
    return f"_epochal_field_{number}"


def arrow_fields(schema: StructType) -> pa.Schema | None:
    """The columns that :class:`JsonDecoder` gives for these fields; ``None`` where one is of a type that it cannot."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema) if _readable(schema) else None


def _readable(type: DataType) -> bool:
    """Whether both parsers make the same of a text for it. Times, decimals and floats are read in ways of Spark's."""
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
    """Which texts mean the same to both, if Arrow's reader takes them."""
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
    """Whether :data:`_UNLIKE` can be in any of the texts at all: a look at their bytes, which costs little."""
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
