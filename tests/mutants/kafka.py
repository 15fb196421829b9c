"""Wrong ways to take records of Kafka by the batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.mutants.mutant import change, mutant

RECORDS = "tests/unit/test_kafka_records.py"


@mutant("Kafka: a record without a value has an empty one", RECORDS)
def _no_value_is_an_empty_one() -> None:
    from epochal.connectors.kafka import records

    change(records, "_copied", lambda copied: lambda starts, lengths, absent=None: copied(starts, lengths))


@mutant("Kafka: what was read is read again when a partition is assigned again", RECORDS)
def _records_twice() -> None:
    from epochal.connectors.kafka.reading import RangeReader

    def wrong(new: Any) -> Any:
        def forgetful(self: RangeReader, place: Any, offsets: Any) -> Any:
            if place in self._open:
                self._next[place] = self._open[place].start
            return new(self, place, offsets)

        return forgetful

    change(RangeReader, "_new", wrong)


@mutant("Kafka: what comes behind the end of a range is read", RECORDS)
def _behind_the_end() -> None:
    from epochal.connectors.kafka.reading import RangeReader

    def wrong(new: Any) -> Any:
        return lambda self, place, offsets: new(self, place, offsets) | (offsets >= self._next.get(place, 1 << 62))

    change(RangeReader, "_new", wrong)


@mutant("Kafka: whatever Arrow's reader takes is JSON as Spark reads it", "tests/spark/test_kafka_json.py")
def _all_json_is_alike() -> None:
    from epochal.connectors.kafka import json_values

    change(json_values, "_alike", lambda _: lambda texts: np.ones(len(texts), np.bool_))


@mutant("Kafka: tombstones stay rows of nulls where they are to be dropped", RECORDS)
def _tombstones_are_rows() -> None:
    from epochal.connectors.kafka.decoding import Columns

    change(Columns, "_with_tombstones_handled", lambda _: lambda self, records: records)


@mutant("Kafka: an empty value is a tombstone", RECORDS)
def _empty_values_are_tombstones() -> None:
    from epochal.connectors.kafka.decoding import Columns

    def wrong(handled: Any) -> Any:
        def too_many(self: Columns, records: Any) -> Any:
            lengths = [len(value or b"") for value in records.values.to_pylist()]
            return records.only(np.array(lengths) > 0) if self.tombstones == "drop" else handled(self, records)

        return too_many

    change(Columns, "_with_tombstones_handled", wrong)
