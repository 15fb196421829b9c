"""librdkafka, the C library inside of confluent-kafka, as far as whole batches of records are taken from it.

confluent-kafka makes a Python object of each record, and asks it for each of its fields: that costs more than to fetch
it. Here a batch comes as the library's structs (``rdkafka.h``: ``rd_kafka_message_t``, which are part of its stable
interface), of which :mod:`epochal.connectors.kafka.records` makes columns at once. Symbols are looked up in
confluent-kafka's own module, so that it is the very library that was installed with it.
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
"""``rd_kafka_message_t`` where pointers have 64 bits."""

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
    """Its functions, by their names. Those that wait let other threads of Python run."""

    def __init__(self) -> None:
        file = str(cimpl.__file__)
        if ctypes.sizeof(c_void_p) != _POINTER_BYTES:
            raise SourceError("The Kafka source needs a Python of 64 bits.")
        for found, functions in ((ctypes.CDLL(file), _WAITING), (ctypes.PyDLL(file), _AT_ONCE)):
            for name, (result, arguments) in functions.items():
                function = getattr(found, name, None)
                if function is None:
                    raise SourceError(
                        f"confluent-kafka {version()[0]} in {file} does not show {name} of librdkafka, which the Kafka "
                        "source reads by. Install one of its wheels: pip install --force-reinstall "
                        "--only-binary confluent-kafka confluent-kafka"
                    )
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"librdkafka's {name} is not declared")


@cache
def library() -> Library:
    """Loaded once in a process."""
    return Library()
