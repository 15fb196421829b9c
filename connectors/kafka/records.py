"""Kafka records as columns, copied in bulk from librdkafka's memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p, string_at
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.connectors.kafka.library import MESSAGE, NO_TIMESTAMP, library

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))

Place = tuple[str, int]
"""Topic and partition number."""

_CLOSE_BYTES = 4096
_MOST_STRETCHES = 64
"""Maximum number of memory stretches. With more stretches, copying message by message costs less."""


@dataclass(frozen=True)
class Records:
    """A batch of records in order of arrival, with one row of each array per record.

    ``place`` is the index of a record's partition in ``places``. Arrays that were not requested are ``None``. Values
    and keys are bytes, and timestamps are milliseconds since 1970; all are null if missing.
    """

    places: tuple[Place, ...]
    place: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    values: pa.Array
    keys: pa.Array | None = None
    timestamps: pa.Array | None = None
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def only(self, kept: npt.NDArray[np.bool_]) -> Records:
        """The records marked in ``kept``, in the same order."""
        if kept.all():
            return self
        mask = pa.array(kept)
        values, keys, timestamps, headers = (
            None if array is None else array.filter(mask)
            for array in (self.values, self.keys, self.timestamps, self.headers)
        )
        return Records(self.places, self.place[kept], self.offsets[kept], values, keys, timestamps, headers)

    @property
    def topics(self) -> pa.Array:
        return self._of_place(pa.array([topic for topic, _ in self.places], pa.string()))

    @property
    def partitions(self) -> pa.Array:
        return self._of_place(pa.array([partition for _, partition in self.places], pa.int32()))

    def _of_place(self, names: pa.Array) -> pa.Array:
        return names.take(pa.array(self.place))

    def where(self, row: int) -> tuple[str, int, int]:
        """Topic, partition and offset of one record."""
        return *self.places[self.place[row]], int(self.offsets[row])


@dataclass(frozen=True)
class Event:
    """An event that librdkafka returns instead of a record: an error, or the end of a partition."""

    place: Place | None
    offset: int
    code: int
    text: str


class Fetched:
    """Messages returned by librdkafka, in the library's memory. The end of the ``with`` block frees them."""

    def __init__(self, addresses: npt.NDArray[np.uint64]) -> None:
        self._addresses = addresses

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *error: object) -> None:
        deque(map(library().rd_kafka_message_destroy, self._addresses.tolist()), maxlen=0)

    @cached_property
    def _messages(self) -> npt.NDArray[Any]:
        sizes = np.full(len(self._addresses), MESSAGE.itemsize, np.uint64)
        structs = _copied(self._addresses, sizes)
        return np.frombuffer(structs.buffers()[2], MESSAGE, len(structs), structs.offset * MESSAGE.itemsize)

    def events(self) -> list[Event]:
        found = self._messages[self._messages["error"] != 0]
        return [_event(message) for message in found]

    def records(self, parts: Collection[str]) -> Records:
        """The records. ``parts``: which of ``key``, ``timestamp`` and ``headers`` to read in addition to the values."""
        good = self._messages["error"] == 0
        messages, addresses = self._messages, self._addresses
        if not good.all():
            messages, addresses = messages[good], addresses[good]
        places, place = _places(messages)
        return Records(
            places,
            place,
            messages["offset"].astype(np.int64),
            _bytes(messages["value"], messages["value_bytes"]),
            _bytes(messages["key"], messages["key_bytes"]) if "key" in parts else None,
            pa.array(map(_timestamp, addresses.tolist()), pa.int64()) if "timestamp" in parts else None,
            pa.array(map(_headers, addresses.tolist()), HEADERS) if "headers" in parts else None,
        )


def _places(messages: npt.NDArray[Any]) -> tuple[tuple[Place, ...], npt.NDArray[np.int64]]:
    """The distinct places, and the index of each message's place among them."""
    topics, partitions = messages["topic"], messages["partition"]
    if len(messages) == 0:
        return (), np.zeros(0, np.int64)
    if (topics == topics[0]).all() and (partitions == partitions[0]).all():
        return (_place(topics[0], partitions[0]),), np.zeros(len(messages), np.int64)
    pairs = np.stack([topics.astype(np.int64), partitions.astype(np.int64)], axis=1)
    each, place = np.unique(pairs, axis=0, return_inverse=True)
    return tuple(_place(topic, partition) for topic, partition in each), place.reshape(-1).astype(np.int64)


def _place(topic: Any, partition: Any) -> Place:
    return library().rd_kafka_topic_name(int(topic)).decode(), int(partition)


def _event(message: Any) -> Event:
    place = _place(message["topic"], message["partition"]) if message["topic"] else None
    said = b"" if not message["value"] else string_at(int(message["value"]), int(message["value_bytes"]))
    text = said.decode(errors="replace") or library().rd_kafka_err2str(int(message["error"])).decode()
    return Event(place, int(message["offset"]), int(message["error"]), text)


def _bytes(starts: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64]) -> pa.Array:
    """The bytes at each address; null for a null address."""
    absent = starts == 0
    if absent.all():
        return pa.nulls(len(starts), pa.binary())
    return _copied(starts, np.where(absent, 0, lengths).astype(np.uint64), absent).cast(pa.binary())


def _copied(
    starts: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64], absent: npt.NDArray[np.bool_] | None = None
) -> pa.LargeBinaryArray:
    """Copy the bytes at each address into a new array.

    Messages that were fetched together are close to each other in memory. A stretch of memory is therefore interpreted
    as an array whose elements alternate between the bytes of a message and the gap to the next message. Arrow copies
    every second element, and the gaps are never read.
    """
    positions = np.flatnonzero(lengths)
    positions = positions[np.argsort(starts[positions], kind="stable")]
    begins, ends = starts[positions].astype(np.int64), (starts[positions] + lengths[positions]).astype(np.int64)
    gaps = begins[1:] - ends[:-1]
    if (gaps < 0).any():
        return _one_by_one(starts, lengths, absent)
    bounds = [0, *(np.flatnonzero(gaps > _CLOSE_BYTES) + 1).tolist(), len(positions)]
    if len(bounds) > _MOST_STRETCHES:
        return _one_by_one(starts, lengths, absent)
    parts = [_stretch(begins[first:stop], ends[first:stop]) for first, stop in pairwise(bounds) if first < stop]
    if len(positions) == len(starts) and (positions[1:] > positions[:-1]).all():
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    index = np.zeros(len(starts), np.int64)
    index[positions] = 1 + np.arange(len(positions))
    return pa.concat_arrays([pa.array([b""], pa.large_binary()), *parts]).take(pa.array(index, mask=absent))


def _stretch(begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Copy the bytes between each pair of ``begins`` and ``ends``, which are in ascending order."""
    offsets = np.empty(2 * len(begins), np.int64)
    offsets[0::2], offsets[1::2] = begins - begins[0], ends - begins[0]
    data = pa.foreign_buffer(int(begins[0]), int(offsets[-1]))
    elements = len(offsets) - 1
    memory = pa.Array.from_buffers(pa.large_binary(), elements, [None, pa.py_buffer(offsets), data], null_count=0)
    return memory.take(pa.array(np.arange(0, elements, 2)))


def _one_by_one(
    starts: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64], absent: npt.NDArray[np.bool_] | None
) -> pa.LargeBinaryArray:
    """Copy message by message, for memory that is scattered or shared."""
    found = [
        string_at(start, length) if length else b""
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    return pa.array(found, pa.large_binary(), mask=absent)


def _timestamp(message: int) -> int | None:
    kind = c_int()
    moment = library().rd_kafka_message_timestamp(message, byref(kind))
    return None if kind.value == NO_TIMESTAMP else int(moment)


def _headers(message: int) -> list[dict[str, Any]] | None:
    found = c_void_p()
    if library().rd_kafka_message_headers(message, byref(found)) != 0:
        return None
    return list(_each_header(found))


def _each_header(headers: c_void_p) -> Iterator[dict[str, Any]]:
    name, value, length = c_char_p(), c_void_p(), c_size_t()
    for index in count():
        if library().rd_kafka_header_get_all(headers, index, byref(name), byref(value), byref(length)) != 0:
            return
        content = None if value.value is None else string_at(value.value, length.value)
        yield {"name": (name.value or b"").decode(errors="replace"), "value": content}
