"""Bindings of librdkafka, the C library in confluent-kafka, for fetching whole batches of records.

confluent-kafka creates a Python object for each record, with a method call for each field, which costs more than
fetching the record. These bindings return a batch as the library's structs (``rd_kafka_message_t`` of ``rdkafka.h``,
part of its stable interface), which :mod:`epochal.connectors.kafka.records` converts to columns in bulk. Symbols are
resolved in confluent-kafka's own module, so the bindings always use the library installed with it.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from functools import cache
from typing import Any

import numpy as np
from confluent_kafka import cimpl, version

from epochal.errors import SourceError

CONSUMER = 1
"""``RD_KAFKA_CONSUMER``"""
_POINTER_BYTES = 8
NO_TIMESTAMP = 0
"""``RD_KAFKA_TIMESTAMP_NOT_AVAILABLE``"""

MESSAGE = np.dtype(
    {
        "names": ["error", "topic", "partition", "value", "value_bytes", "key", "key_bytes", "offset"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 72,
    }
)
"""Layout of ``rd_kafka_message_t`` with 64-bit pointers."""

_WAITING: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_consume_batch_queue": (c_ssize_t, [c_void_p, c_int, c_void_p, c_size_t]),
    "rd_kafka_query_watermark_offsets": (c_int, [c_void_p, c_char_p, c_int32, c_void_p, c_void_p, c_int]),
    "rd_kafka_assign": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_incremental_unassign": (c_void_p, [c_void_p, c_void_p]),
    "rd_kafka_consumer_close": (c_int, [c_void_p]),
    "rd_kafka_destroy": (None, [c_void_p]),
}
_AT_ONCE: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_conf_set_log_cb": (None, [c_void_p, c_void_p]),
    "rd_kafka_conf_destroy": (None, [c_void_p]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_poll_set_consumer": (c_int, [c_void_p]),
    "rd_kafka_queue_get_consumer": (c_void_p, [c_void_p]),
    "rd_kafka_queue_destroy": (None, [c_void_p]),
    "rd_kafka_topic_partition_list_new": (c_void_p, [c_int]),
    "rd_kafka_topic_partition_list_add": (c_void_p, [c_void_p, c_char_p, c_int32]),
    "rd_kafka_topic_partition_list_set_offset": (c_int, [c_void_p, c_char_p, c_int32, c_int64]),
    "rd_kafka_topic_partition_list_destroy": (None, [c_void_p]),
    "rd_kafka_error_code": (c_int, [c_void_p]),
    "rd_kafka_error_destroy": (None, [c_void_p]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_topic_name": (c_char_p, [c_void_p]),
    "rd_kafka_message_timestamp": (c_int64, [c_void_p, c_void_p]),
    "rd_kafka_message_headers": (c_int, [c_void_p, c_void_p]),
    "rd_kafka_header_get_all": (c_int, [c_void_p, c_size_t, c_void_p, c_void_p, c_void_p]),
    "rd_kafka_message_destroy": (None, [c_void_p]),
}


class Library:
    """Functions of librdkafka, as attributes. Blocking functions release Python's global interpreter lock."""

    def __init__(self) -> None:
        file = str(cimpl.__file__)
        if ctypes.sizeof(c_void_p) != _POINTER_BYTES:
            raise SourceError("The Kafka source needs a Python of 64 bits.")
        for found, functions in ((ctypes.CDLL(file), _WAITING), (ctypes.PyDLL(file), _AT_ONCE)):
            for name, (result, arguments) in functions.items():
                function = getattr(found, name, None)
                if function is None:
                    raise SourceError(
                        f"confluent-kafka {version()[0]} in {file} does not export {name} of librdkafka, which the "
                        "Kafka source requires. Install one of its wheels: pip install --force-reinstall "
                        "--only-binary confluent-kafka confluent-kafka"
                    )
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"librdkafka's {name} is not declared")


@cache
def library() -> Library:
    """The library, loaded once per process."""
    return Library()
