"""Records of Kafka as columns, copied at once out of the memory of the library that has fetched them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p, string_at
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.connectors.kafka.library import MESSAGE, NO_TIMESTAMP, library

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))

Place = tuple[str, int]
"""A topic and the number of a partition."""


@dataclass(frozen=True)
class Records:
    """Some records, in the order in which they came: a row of each array for each.

    ``place``: of each record, the index of its place in ``places``. Arrays that were not asked for are ``None``. Values
    and keys are bytes, null where there are none; timestamps are milliseconds since 1970, null where there is none.
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
        """Those that are marked, in the same order."""
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
    """What the library says instead of a record: an error, or that a partition is at its end."""

    place: Place | None
    offset: int
    code: int
    text: str


class Fetched:
    """Messages that the library has handed over. They are its memory until they are given back, at the block's end."""

    def __init__(self, addresses: npt.NDArray[np.uint64]) -> None:
        self._addresses = addresses

    def __enter__(self) -> Fetched:
        return self

    def __exit__(self, *error: object) -> None:
        deque(map(library().rd_kafka_message_destroy, self._addresses.tolist()), maxlen=0)

    @cached_property
    def _messages(self) -> npt.NDArray[Any]:
        structs = _copied(self._addresses, np.uint64(MESSAGE.itemsize)).buffers()[2]
        return np.frombuffer(structs, MESSAGE, count=len(self._addresses))

    def events(self) -> list[Event]:
        found = self._messages[self._messages["error"] != 0]
        return [_event(message) for message in found]

    def records(self, parts: Collection[str]) -> Records:
        """``parts``: of ``key``, ``timestamp`` and ``headers``, which are to be had beside the values."""
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
    """Each place once; and which of them each message has."""
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
    """The bytes at each address; null where there is no address."""
    absent = starts == 0
    if not absent.any():
        return _copied(starts, lengths).cast(pa.binary())
    if absent.all():
        return pa.nulls(len(starts), pa.binary())
    somewhere = starts[~absent][0]
    return _copied(np.where(absent, somewhere, starts), np.where(absent, 0, lengths), absent).cast(pa.binary())


def _copied(
    starts: npt.NDArray[np.uint64],
    lengths: npt.NDArray[np.uint64] | np.uint64,
    absent: npt.NDArray[np.bool_] | None = None,
) -> pa.LargeBinaryArray:
    """The bytes at each address, as an array of its own.

    Arrow takes them out of an array over all memory between the least and the greatest address, whose elements are by
    turns the bytes of a message and whatever is between them and those of the next: that is never looked at.
    """
    number = len(starts)
    if number == 0:
        return pa.array([], pa.large_binary())
    base = starts.min()
    first, end = (starts - base).astype(np.int64), (starts + lengths - base).astype(np.int64)
    offsets = np.empty(2 * number + 1, np.int64)
    offsets[0:-1:2], offsets[1::2] = first, end
    # Arrow reserves memory by the mean length of all elements, which the last offset decides.
    offsets[-1] = first[0] + 2 * int((end - first).sum())
    data = pa.foreign_buffer(int(base), max(int(end.max()), int(offsets[-1])))
    memory = pa.Array.from_buffers(pa.large_binary(), 2 * number, [None, pa.py_buffer(offsets), data], null_count=0)
    return memory.take(pa.array(np.arange(0, 2 * number, 2), mask=absent))


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
