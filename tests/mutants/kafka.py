"""Wrong ways to read Kafka records in batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.mutants.mutant import change, mutant

RECORDS = "tests/unit/test_kafka_records.py"


@mutant("Kafka: a missing value is read as an empty value", RECORDS)
def _missing_values_are_empty() -> None:
    from epochal.connectors.kafka import records

    change(records, "_copied", lambda copied: lambda starts, lengths, absent=None: copied(starts, lengths))


@mutant("Kafka: records are read twice when a partition is assigned again", RECORDS)
def _records_twice() -> None:
    from epochal.connectors.kafka.reading import RangeReader

    def wrong(new: Any) -> Any:
        def forgetful(self: RangeReader, place: Any, offsets: Any) -> Any:
            if place in self._open:
                self._next[place] = self._open[place].start
            return new(self, place, offsets)

        return forgetful

    change(RangeReader, "_new", wrong)


@mutant("Kafka: records after the end of a range are read", RECORDS)
def _past_the_end() -> None:
    from epochal.connectors.kafka.reading import RangeReader

    def wrong(new: Any) -> Any:
        return lambda self, place, offsets: new(self, place, offsets) | (offsets >= self._next.get(place, 1 << 62))

    change(RangeReader, "_new", wrong)


@mutant("Kafka: Arrow parses JSON that Spark reads differently", "tests/spark/test_kafka_json.py")
def _arrow_parses_all_json() -> None:
    from epochal.connectors.kafka import json_values

    change(json_values, "_alike", lambda _: lambda texts: np.ones(len(texts), np.bool_))


@mutant("Kafka: tombstones become rows of nulls although they are to be dropped", RECORDS)
def _tombstones_are_rows() -> None:
    from epochal.connectors.kafka.decoding import Columns

    change(Columns, "_with_tombstones_handled", lambda _: lambda self, records: records)


@mutant("Kafka: an empty value counts as a tombstone", RECORDS)
def _empty_values_are_tombstones() -> None:
    from epochal.connectors.kafka.decoding import Columns

    def wrong(handled: Any) -> Any:
        def too_many(self: Columns, records: Any) -> Any:
            lengths = [len(value or b"") for value in records.values.to_pylist()]
            return records.only(np.array(lengths) > 0) if self.tombstones == "drop" else handled(self, records)

        return too_many

    change(Columns, "_with_tombstones_handled", wrong)
