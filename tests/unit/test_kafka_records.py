"""Records that a slice takes from a consumer, and their copy out of the client's memory."""

from __future__ import annotations

import ctypes
from itertools import chain
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.backends.kafka.connection import Connection
from epochal.connectors.kafka import records, source
from epochal.connectors.kafka.decoding import (
    AvroDecoder,
    BytesDecoder,
    Columns,
    TextDecoder,
    Tombstones,
    ValueDecoder,
)
from epochal.connectors.kafka.json_values import JsonDecoder
from epochal.connectors.kafka.offsets import OffsetRange
from epochal.connectors.kafka.reading import RangeReader
from epochal.connectors.kafka.records import Place, Records
from epochal.errors import MalformedRecord, OptionError

PLACES: tuple[Place, ...] = (("a", 0), ("a", 1), ("b", 0))


@given(st.lists(st.none() | st.binary(max_size=80), min_size=1, max_size=50), st.randoms())
def test_bytes_are_copied_from_separate_buffers(values: list[bytes | None], chance: object) -> None:
    """Each value has its own memory, in no order."""
    memory = [None if value is None else ctypes.create_string_buffer(value, len(value) + 1) for value in values]
    addresses = [0 if each is None else ctypes.addressof(each) for each in memory]
    lengths = [0 if value is None else len(value) for value in values]
    copied = records._bytes(np.array(addresses, np.uint64), np.array(lengths, np.uint64))
    del memory
    copied.validate(full=True)
    assert copied.to_pylist() == values


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 40)), min_size=1, max_size=99), st.randoms())
def test_bytes_are_copied_from_parts_of_one_buffer(apart: list[tuple[int, int]], chance: Random) -> None:
    """Messages of one buffer with gaps of any size, in any order; two may share memory."""
    gaps, lengths = np.array(apart).T
    ends = np.cumsum(gaps + lengths)
    memory = np.random.default_rng(1).integers(0, 255, ends[-1] + 1).astype(np.uint8)
    begins = ends - lengths
    order = chance.sample(range(len(lengths)), len(lengths))
    order += order[: chance.randint(0, 1)]
    starts, sizes = begins[order] + memory.ctypes.data, lengths[order]
    copied = records._bytes(starts.astype(np.uint64), sizes.astype(np.uint64))
    copied.validate(full=True)
    assert copied.to_pylist() == [memory[begins[at] : ends[at]].tobytes() for at in order]


AVRO = '{"type": "record", "name": "Row", "fields": [{"name": "n", "type": "long"}]}'
ALL = frozenset(("n", "value", "_epochal_field_0", "at", "key"))


@pytest.mark.parametrize("unread", [frozenset(), ALL], ids=["all columns", "pruned"])
@pytest.mark.parametrize(
    ("decoder", "value", "located"),
    [
        (BytesDecoder("value"), b"", False),
        (TextDecoder("value"), b"", False),
        (TextDecoder("_epochal_value"), b'{"n":{"deep":1}}', True),
        (JsonDecoder(pa.schema([("n", pa.int64())])), b'{"n":1}', True),
        (AvroDecoder(AVRO), b"\x02", False),
    ],
    ids=["raw", "string", "JSON by Spark", "JSON by Arrow", "Avro"],
)
def test_tombstones_are_handled_in_every_format(
    decoder: ValueDecoder, value: bytes, located: bool, unread: frozenset[str]
) -> None:
    """An empty value is not a tombstone, and the choice does not depend on which columns are read."""

    def batch(tombstones: Tombstones, values: list[bytes | None]) -> pa.RecordBatch:
        metadata = (("key", "key"), ("at", "offset"), ("kept", "offset"))
        columns = Columns(decoder, metadata, "string", located, unread=unread, tombstones=tombstones)
        keys = [f"k{row}".encode() for row in range(len(values))]
        offsets = np.arange(7, 7 + len(values))
        arrays = pa.array(values, pa.binary()), pa.array(keys, pa.binary())
        found = columns.batch(Records((("t", 3),), np.zeros(len(values), np.int64), offsets, *arrays))
        found.validate(full=True)
        assert found.schema == columns.schema
        return found

    mixed = [None, value, value, None, value]
    rows = batch("row", mixed)
    assert rows.column("kept").to_pylist() == [7, 8, 9, 10, 11]
    left = batch("drop", mixed)
    assert left == rows.take(pa.array([1, 2, 4]))
    assert len(batch("drop", [None, None])) == 0
    assert len(batch("fail", [value, value])) == 2
    with pytest.raises(MalformedRecord, match=r"offset 8 of topic t, partition 3 has no value \(a tombstone\)"):
        batch("fail", [value, None, value, None])


def test_an_unknown_treatment_of_tombstones_is_refused() -> None:
    with pytest.raises(OptionError, match="tombstones is 'skip'"):
        source("broker:9092", "t", "raw", tombstones="skip")  # type: ignore[arg-type]


Messages = list[tuple[int, int]]
messages = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=40)


@given(st.lists(messages, max_size=5), st.integers(0, 15), st.integers(16, 30))
def test_a_slice_takes_the_records_of_its_ranges_once_and_in_order(
    batches: list[Messages], start: int, end: int
) -> None:
    """Compared with a loop over single messages, including those of previous assignments."""
    ranges = [OffsetRange(*place, start, end) for place in PLACES[:2]]
    reader = RangeReader(Connection("broker:9092"), ranges, ())
    reader._consumer = _NoConsumer()  # type: ignore[assignment]
    expected: list[tuple[str, int, int]] = []
    reached = dict.fromkeys(PLACES[:2], start - 1)
    for index, offset in chain.from_iterable(batches):
        place = PLACES[index]
        if place in reached and reached[place] < min(offset, end - 1):
            reached[place] = offset
            expected += [(*place, offset)] if offset < end else []
    taken = [reader._taken(_records(batch)) for batch in batches]
    assert [each.where(row) for each in taken for row in range(len(each))] == expected
    assert set(reader._open) == {place for place, last in reached.items() if last < end - 1}


class _NoConsumer:
    def unassign(self, place: Place) -> None: ...


def _records(messages: Messages) -> Records:
    place, offsets = np.array(messages, np.int64).reshape(-1, 2).T
    return Records(PLACES, place, offsets, pa.nulls(len(messages), pa.binary()))
